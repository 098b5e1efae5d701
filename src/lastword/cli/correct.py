"""`lastword correct`: corrects the choice for one prompt, or for a file of prompts."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options
from lastword.cli.output import check_writable, grid, printable, say, show, write_lines
from lastword.cli.progress import tracked, waiting
from lastword.errors import InputError, ItemError, NonFiniteError, UntrainedError
from lastword.files.strict_json import to_json

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.records.decision import Decision
    from lastword.rule.theta import Theta
    from lastword.text.items import Item
    from lastword.text.tokens import EncodedItem


def correct(
    *,
    model: opt.Model,
    prompt: Annotated[str | None, typer.Option(help="Text before the answer.")] = None,
    messages: Annotated[
        str | None,
        typer.Option(help="Conversation instead of --prompt: a JSON list of roles and contents."),
    ] = None,
    candidate: Annotated[list[str] | None, typer.Option(help="An answer; repeatable.")] = None,
    input: Annotated[
        Path | None,
        typer.Option(
            help="File of items: JSON lines, a JSON array, CSV, TSV, Excel or Parquet; - is "
            "standard input."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "--output", help="JSONL file for the decisions.")
    ] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Write bad items as errors and go on.")
    ] = False,
    blind_prompt: Annotated[
        str | None,
        typer.Option(help="The prompt without the question, for methods that compare with it."),
    ] = None,
    encoding: opt.Encoding = None,
    separator: Annotated[str, typer.Option(help="Text between prompt and candidate.")] = " ",
    method: Annotated[
        str, typer.Option(help="trace, or a method listed by `lastword compare --list`.")
    ] = "trace",
    full: Annotated[
        bool, typer.Option("--full", help="Read every depth and T, and print them as JSON.")
    ] = False,
    json: opt.Json = False,
    certificate: opt.Certificate = None,
    loading: opt.Loading,
) -> None:
    """Correct a model's choice among candidate answers."""
    if method != "trace" and certificate is not None:
        raise typer.BadParameter(f"--certificate does not go with --method {method}")
    options = replace(load_options(model, loading), certificate=certificate)
    open_model = partial(load_decider, options)
    if input is not None:
        if not (prompt is messages is blind_prompt is None) or candidate:
            raise typer.BadParameter("give --input, or --prompt with --candidate, not both")
    elif (prompt is None) == (messages is None) or not candidate:
        raise typer.BadParameter(
            "give --prompt or --messages, and at least one --candidate; or --input"
        )
    elif out is not None or skip_invalid or encoding is not None:
        raise typer.BadParameter("--out, --skip-invalid and --encoding go with --input")
    # Unknown methods and invalid text are refused before the model is loaded.
    if method != "trace":
        from lastword.methods import entry

        entry(method)
    if input is not None:
        from lastword.text.reading import read_items

        parsed = read_items(input, separator=separator, say=say, encoding=encoding)
        _many(open_model, input, parsed, out, skip_invalid, method, full)
        return
    from lastword.text.items import Item

    text = prompt if messages is None else _conversation(messages)
    content = {"prompt": text, "candidates": candidate, "separator": separator}
    _one(open_model, Item.from_dict(content | {"blind_prompt": blind_prompt}), method, full, json)


def _conversation(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"--messages is not valid JSON: {error}") from error


def _one(
    open_model: "Callable[[], Decider]", item: "Item", method: str, full: bool, as_json: bool
) -> None:
    decider = open_model()
    with waiting("correcting"):
        (encoded,) = decider.encode([item])
        if isinstance(encoded, ItemError):
            raise encoded
        (decision,) = _decisions(decider, [encoded], method, full)
        if isinstance(decision, NonFiniteError):
            raise decision
    _say_merges([encoded])
    if as_json or full:
        typer.echo(_line(decision, full, _overrides(decider.tracer.theta)))
    else:
        _show(decision, decider.tracer.theta)
    _warn_early(int(decision.operator == "early"), 1)


def _many(
    open_model: "Callable[[], Decider]",
    path: Path,
    parsed: "Sequence[Item | ItemError]",
    output: Path | None,
    skip_invalid: bool,
    method: str,
    full: bool,
) -> None:
    from lastword.text.reading import require_items

    if not (skip_invalid and parsed):
        require_items(parsed, path)
    if output is not None:
        check_writable(output)
    decider = open_model()
    encoded = _encode(decider, parsed)
    if not skip_invalid:  # errors that only this model's tokenizer finds
        read = [e for e in encoded if not isinstance(e, UntrainedError)]
        if read:
            require_items([e if isinstance(e, ItemError) else e.item for e in read], path)
    _say_merges(encoded)
    _say_skipped(encoded)
    tally = Counter[str]()
    lines = tracked(_lines(decider, encoded, method, full, tally), "correcting", len(encoded))
    if output is not None:
        write_lines(output, lines)
        counts = f"{tally['answered']} answered, {tally['corrected']} of them corrected"
        say(f"lastword: wrote {output}: {counts}")
    else:
        for line in lines:
            typer.echo(line)
    _warn_early(tally["early"], tally["answered"])
    if not skip_invalid and tally["answered"] < len(encoded):
        raise typer.Exit(1)


def _encode(
    decider: "Decider", parsed: Sequence["Item | ItemError"]
) -> list["EncodedItem | ItemError"]:
    """Return encoded items, or the error by the file, the tokenizer or the context."""
    with waiting("reading tokens"):
        results = iter(decider.encode([p for p in parsed if not isinstance(p, ItemError)]))
    return [p if isinstance(p, ItemError) else next(results) for p in parsed]


def _say_merges(encoded: Sequence["EncodedItem | ItemError"]) -> None:
    merges = sum(not isinstance(e, ItemError) and e.prompt.boundary_moved for e in encoded)
    if merges:
        say(
            f"note: in {merges} of {len(encoded)} items joining merged tokens across the end of "
            "the prompt; the candidate begins before it (--separator, tokens.join)"
        )


def _say_skipped(encoded: Sequence["EncodedItem | ItemError"]) -> None:
    from lastword.text.reading import summarise

    if errors := [e for e in encoded if isinstance(e, ItemError)]:
        note = f"skipped {len(errors)} of {len(encoded)}: {summarise(errors)}"
        say(f"lastword: {note}")


def _warn_early(early: int, decisions: int) -> None:
    if early:
        which = "the answer" if decisions == 1 else f"{early} of {decisions} answers"
        say(
            f"warning: `early` decided {which}: by the scores of depth 0, which has not read the "
            "question and rates each candidate's own wording; base is the model's answer"
        )


def _lines(
    decider: "Decider",
    encoded: Sequence["EncodedItem | ItemError"],
    method: str,
    full: bool,
    tally: Counter[str],
) -> Iterator[str]:
    overrides = _overrides(decider.tracer.theta)
    good = [e for e in encoded if not isinstance(e, ItemError)]
    decisions = _decisions(decider, good, method, full)
    for entry in encoded:
        if isinstance(entry, ItemError):
            yield to_json({"id": entry.item, "error": str(entry)})
            continue
        decision = next(decisions)
        if isinstance(decision, NonFiniteError):
            yield to_json({"id": entry.item.id, "error": str(decision)})
            continue
        early = decision.operator == "early"
        tally.update(answered=1, corrected=int(decision.corrected), early=int(early))
        yield _line(decision, full, overrides)


def _decisions(
    decider: "Decider", encoded: "Sequence[EncodedItem]", method: str, full: bool
) -> "Iterator[Decision | NonFiniteError]":
    """Yield the method's decisions or errors, in order; `full` reads every depth and T."""
    scope = decider.scope("all", "all") if full else decider.scope()
    if method != "trace":
        from lastword.methods import resolve

        methods = resolve([method], decider.tracer.facts)
        scope = replace(scope, read=scope.read if full else "base", methods=methods)
    for decision in decider.tracer.correct_encoded(encoded, scope):
        if method == "trace" or isinstance(decision, NonFiniteError):
            yield decision
        else:
            yield decision.by(method)


def _line(decision: "Decision", full: bool, overrides: dict[str, Any]) -> str:
    record = decision.to_dict(full=full)
    return to_json(record | {"theta": overrides} if overrides else record)


def _overrides(theta: "Theta") -> dict[str, Any]:
    """Return the values that differ from the default constants, by dotted name.

    `outside_paper` is added if the paper does not cover these values.
    """
    differences = theta.differences(type(theta)())
    return differences | ({"outside_paper": True} if theta.outside_paper else {})


def _show(decision: "Decision", theta: "Theta") -> None:
    from lastword.records.explanation import explain
    from lastword.records.view import correction

    show(correction(printable(decision.base_answer), printable(decision.answer)))
    if (override := decision.withheld) is not None:
        answer = printable(decision.candidates[override.index])
        typer.echo(f"withheld: {answer}  (by {override.operator}; {override.rule})")
    if decision.deferred:
        typer.echo("deferred: too unsure for the certificate")
    shares = zip(decision.base_probabilities, decision.probabilities, strict=True)
    numbers = ((f"{before:.3f}", f"{after:.3f}") for before, after in shares)
    rows = [(text, *both) for text, both in zip(decision.candidates, numbers, strict=True)]
    show(grid(("candidate", "base", "corrected"), rows, {"base", "corrected"}))
    typer.echo(printable(explain(decision, theta)))
    if overrides := _overrides(theta):
        typer.echo("theta: " + ", ".join(f"{k} = {v}" for k, v in overrides.items()))
