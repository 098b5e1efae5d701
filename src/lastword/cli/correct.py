"""`lastword correct`: corrects the choice for one prompt, or for a file of prompts."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options
from lastword.cli.output import check_writable, grid, printable, say, show, write_lines
from lastword.cli.progress import tracked, waiting
from lastword.errors import ItemError, NonFiniteError, UntrainedError
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
    separator: Annotated[str, typer.Option(help="Text between --prompt and candidate.")] = " ",
    full: Annotated[
        bool, typer.Option("--full", help="Read every depth and T, and print them as JSON.")
    ] = False,
    json: opt.Json = False,
    certificate: opt.Certificate = None,
    correction: opt.Correction = None,
    loading: opt.Loading,
) -> None:
    """Correct a model's choice among candidate answers."""
    answers = opt.AnswerOptions(correction=correction, certificate=certificate)
    options = load_options(model, loading, answers)
    from lastword.text.items import Item
    from lastword.text.reading import read_items, require_items

    parsed: Sequence[Item | ItemError]
    if input is not None:
        if prompt is not None or candidate or blind_prompt is not None:
            raise typer.BadParameter("give --input, or --prompt with --candidate, not both")
        parsed = read_items(input, say=say, encoding=encoding)
        if not (skip_invalid and parsed):
            require_items(parsed, input)
    elif prompt is None or not candidate:
        raise typer.BadParameter("give --prompt and at least one --candidate, or --input")
    elif out is not None or skip_invalid or encoding is not None:
        raise typer.BadParameter("--out, --skip-invalid and --encoding go with --input")
    else:
        item = {"prompt": prompt, "candidates": candidate, "separator": separator}
        parsed = [Item.from_dict(item | {"blind_prompt": blind_prompt})]
    if out is not None:
        check_writable(out)
    decider = load_decider(options)
    if input is None:
        _one(decider, parsed, full, json or full)
    else:
        _many(decider, input, parsed, out, skip_invalid, full)


def _one(
    decider: "Decider", parsed: "Sequence[Item | ItemError]", full: bool, as_json: bool
) -> None:
    with waiting("correcting"):
        many = decider.correct_many
        (decision,) = many(parsed, "all", blind="all") if full else many(parsed)
    if as_json:
        typer.echo(_line(decision, full, decider))
    else:
        _show(decision, decider.tracer.theta)


def _many(
    decider: "Decider",
    path: Path,
    parsed: "Sequence[Item | ItemError]",
    output: Path | None,
    skip_invalid: bool,
    full: bool,
) -> None:
    from lastword.text.reading import require_items, summarise

    with waiting("reading tokens"):
        results = iter(decider.encode([p for p in parsed if not isinstance(p, ItemError)]))
    encoded = [p if isinstance(p, ItemError) else next(results) for p in parsed]
    errors = [e for e in encoded if isinstance(e, ItemError)]
    # Errors that only this model's tokenizer finds.
    if not skip_invalid and (bad := [e for e in errors if not isinstance(e, UntrainedError)]):
        require_items(bad, path)
    if errors:
        say(f"lastword: skipped {len(errors)} of {len(encoded)}: {summarise(errors)}")
    tally = Counter[str]()
    lines = tracked(_lines(decider, encoded, full, tally), "correcting", len(encoded))
    if output is not None:
        write_lines(output, lines)
        counts = f"{tally['answered']} answered, {tally['corrected']} of them corrected"
        say(f"lastword: wrote {output}: {counts}")
    else:
        for line in lines:
            typer.echo(line)
    if not skip_invalid and tally["answered"] < len(encoded):
        raise typer.Exit(1)


def _lines(
    decider: "Decider",
    encoded: Sequence["EncodedItem | ItemError"],
    full: bool,
    tally: Counter[str],
) -> Iterator[str]:
    scope = decider.scope("all", "all") if full else decider.scope()
    good = [e for e in encoded if not isinstance(e, ItemError)]
    decisions = decider.tracer.correct_encoded(good, scope)
    for entry in encoded:
        if isinstance(entry, ItemError):
            yield to_json({"id": entry.item, "error": str(entry)})
            continue
        decision = next(decisions)
        if isinstance(decision, NonFiniteError):
            yield to_json({"id": entry.item.id, "error": str(decision)})
            continue
        tally.update(answered=1, corrected=int(decision.corrected))
        yield _line(decision, full, decider)


def _line(decision: "Decision", full: bool, decider: "Decider") -> str:
    record, overrides = decision.to_dict(full=full), _overrides(decider.tracer.theta)
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
