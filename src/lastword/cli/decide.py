"""`lastword decide`: answers typed questions about one text, or about a file of texts."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options, read_engine
from lastword.cli.output import check_writable, grid, say, show, write_csv
from lastword.cli.progress import tracked, waiting
from lastword.errors import InputError, TraceError, reason
from lastword.files.strict_json import from_json, to_json
from lastword.files.wording import counted

if TYPE_CHECKING:
    from lastword.decide.answer import Answers
    from lastword.decide.decider import Decider
    from lastword.decide.questionnaire import Questionnaire
    from lastword.engines.bulk import Bulk
    from lastword.engines.ray import Cluster
    from lastword.files.rows import Row

_COLUMNS = ("input", "text")  # default names for --text-column


def decide(
    *,
    folder: opt.Trial = None,
    model: opt.ModelOrNone = None,
    questions: Annotated[
        Path, typer.Option(help="YAML or JSON file of questions by name (docs/decisions.md).")
    ],
    text: Annotated[
        str | None, typer.Option(help="The text; read from standard input if left out.")
    ] = None,
    input: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="File of texts: JSON lines, a JSON array, CSV, TSV, Excel or Parquet; - is "
            "standard input. With --engine ray a Parquet file or folder, also on s3://.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "--output",
            metavar="PATH",
            help="File for the answers, .jsonl or .csv; with --engine ray a folder for Parquet. "
            "Answers that a .jsonl file already has are not computed again.",
        ),
    ] = None,
    text_column: opt.TextColumn = None,
    id_column: opt.IdColumn = None,
    encoding: opt.Encoding = None,
    template: opt.Template = None,
    json: opt.Json = False,
    answers: opt.AnswerOptions,
    loading: opt.Loading,
    engine: opt.EngineOrRay = "local",
    engine_options: opt.EngineOptions = None,
) -> None:
    """Answer questions about a text: a choice, yes or no, or a score, with probabilities."""
    if text is not None and input is not None:
        raise typer.BadParameter("give --text or --input, not both")
    if input is None and (out or text_column or id_column or encoding):
        raise typer.BadParameter("--out, --text-column, --id-column and --encoding go with --input")
    from lastword.decide.questionnaire import prepare
    from lastword.decide.questions_file import read_questions

    options = load_options(model, loading, answers, [questions])
    questionnaire = read_questions(questions)
    prepare(questionnaire, template, chat=True)  # refuses a bad template before the model loads
    cluster = read_engine(engine, engine_options)
    if cluster is not None:
        if input is None or out is None:
            raise typer.BadParameter("--engine ray takes --input and --out: Parquet")
        from lastword.engines.bulk import prepare_bulk

        bulk = prepare_bulk(load_decider, options, questionnaire, template)
        _on_ray(bulk, cluster, input, out, text_column, id_column)
        return
    texts = None if input is None else _texts(Path(input), text_column, id_column, encoding)
    path = None if out is None else Path(out)
    if path is not None:
        check_writable(path)
    if texts is None and text is None:
        text = sys.stdin.read().rstrip("\n")
        if not text.strip():
            raise InputError("standard input has no text: write one, or give --text or --input")
    decider = load_decider(options)
    ready = decider.prepare(questionnaire, template=template, warn=False)
    for name, served in ready.near.items():
        say(
            f"lastword: question {name!r} is almost the served question {served!r}, but answered "
            "without it"
        )
    if texts is not None:
        _many(decider, ready, texts, path)
        return
    assert text is not None
    with waiting("deciding"):
        result = decider.decide(text, ready)
    if json:
        typer.echo(to_json(result.to_dict()))
    else:
        _show(result)


def _on_ray(
    bulk: "Bulk", cluster: "Cluster", input: str, output: str, column: str | None, id: str | None
) -> None:
    from lastword.engines.bulk import decide_files

    source, target = (
        path if "://" in path else str(Path(path).resolve()) for path in (input, output)
    )
    count, failures = decide_files(bulk, source, target, cluster, text=column, id=id)
    say(f"lastword: {output} has {counted(count, 'text')}")
    _report_failures(failures)


def _texts(
    path: Path, column: str | None, id: str | None, encoding: str | None
) -> list[tuple[str, Any]]:
    """Return the texts of a file with their names, and errors in the places of invalid texts."""
    from lastword.files.rows import read_rows

    texts = [_text(row, column, id) for row in read_rows(path, say, encoding)]
    errors = [value for _, value in texts if isinstance(value, InputError)]
    if errors and len(errors) == len(texts):
        raise InputError(f"{path}: {errors[0]}")
    if not texts:
        raise InputError(f"{path} has no texts; expected one text per row")
    return texts


def _text(row: "Row", column: str | None, id: str | None) -> tuple[str, Any]:
    from lastword.files.rows import id_column

    value, name = row.value, row.place
    if row.error is not None:
        return name, InputError(f"{name}: {row.error}")
    if not isinstance(value, Mapping):
        value, column, id = {"text": value}, None, None
    place = column or next((key for key in _COLUMNS if key in value), None)
    identifier = value.get(id or id_column([key for key in value if key != place]))
    if identifier not in (None, ""):  # a lone surrogate cannot be written: it becomes `\\ud800`
        name = str(identifier).encode("utf-8", "backslashreplace").decode()
    if place not in value:
        names = ", ".join(map(str, value))
        return name, InputError(f"{row.place} has no text: --text-column names one of {names}")
    if id is not None and id not in value:
        return name, InputError(f"{row.place} has no {id!r} for --id-column")
    text = value[place]
    if text is None or (isinstance(text, str) and not text.strip()):
        return name, InputError(f"{row.place} has no text")
    if not isinstance(text, str | Mapping | Sequence):
        fault = f"expected a text, not {type(text).__name__}"
        return name, InputError(f"{row.place}: {fault}")
    return name, text


def _many(
    decider: "Decider",
    ready: "Questionnaire",
    texts: Sequence[tuple[str, Any]],
    output: Path | None,
) -> None:
    """Write the answers about many texts: as CSV once all are there, or line by line as JSON."""
    failures = done = 0
    # A certificate of a table of one question's answers holds for the answerer of its rows.
    answerers = [*decider.answerers(ready)] if len(ready.questions) == 1 else []
    by = dict(zip(("answerer",), answerers, strict=False))
    if output is None:
        for name, answer in _answers(decider, ready, texts):
            typer.echo(_json_line(name, answer))
            failures += isinstance(answer, str)
    elif output.suffix.lower() == ".csv":
        failures = _write_table(decider, ready, texts, output, by)
    else:
        work = [*_digests(decider, ready, texts)]
        done, failures = _resume(output, [name for name, _ in texts], work)
        try:
            with output.open("ab") as file:
                answers = _answers(decider, ready, texts[done:])
                for digest, (name, answer) in zip(work[done:], answers, strict=True):
                    file.write(f"{_json_line(name, answer, work=digest, **by)}\n".encode())
                    file.flush()
                    failures += isinstance(answer, str)
        except OSError as error:
            raise InputError(f"cannot write {output}: {error.strerror or error}") from error
    if output is not None:
        before = f", {done} of them before" if done else ""
        say(f"lastword: wrote {output}: {counted(len(texts), 'text')}{before}")
    _report_failures(failures)


def _write_table(
    decider: "Decider",
    ready: "Questionnaire",
    texts: Sequence[tuple[str, Any]],
    output: Path,
    by: dict[str, str],
) -> int:
    from lastword.decide.answer import ERROR, columns_of, row_of

    # `certify` leaves out rows that trained what answers them.
    marks = ("trained",) if decider.probes else ()
    columns = (*columns_of(ready.questions), *marks, *by, ERROR)
    rows: list[dict[str, Any]] = []
    for name, answer in _answers(decider, ready, texts):
        if isinstance(answer, str):
            rows.append({"id": name, ERROR: answer})
        else:
            trained = any(one.trained for one in answer.values())
            rows.append({"id": name, "trained": trained} | by | row_of(answer))
    write_csv(output, [["id", *columns], *(map(row.get, ("id", *columns)) for row in rows)])
    return sum(ERROR in row for row in rows)


def _json_line(name: str, answer: "Answers | str", **more: str) -> str:
    content = {"error": answer} if isinstance(answer, str) else {"answers": answer.to_dict()}
    return to_json({"id": name, **more, **content})


def _answers(
    decider: "Decider", ready: "Questionnaire", texts: Sequence[tuple[str, Any]]
) -> "Iterator[tuple[str, Answers | str]]":
    readable = [value for _, value in texts if not isinstance(value, InputError)]
    answers = decider.decide_many(readable, ready, on_error="return")
    for name, value in tracked(texts, "deciding", len(texts)):
        answer = value if isinstance(value, InputError) else next(answers)
        yield name, reason(answer) if isinstance(answer, TraceError) else answer


def _report_failures(failures: int) -> None:
    if failures:
        say(f"lastword: {counted(failures, 'text')} could not be read; `error` says why")
        raise typer.Exit(1)


def _digests(
    decider: "Decider", ready: "Questionnaire", texts: Sequence[tuple[str, Any]]
) -> Iterator[str]:
    """Yield a digest of everything that each text's answers depend on."""
    from lastword.model.weights.identity import text_digest
    from lastword.text.question import question_to

    parts = {name: question_to(question) for name, question in ready.questions.items()}
    probes = [probe.digest for probe in decider.probes]
    model = {name: fact for name, fact in decider.describe().items() if name != "check"}
    facts = to_json([parts, ready.template.text, model, probes, decider.novelty])
    for _, value in texts:
        text = "" if isinstance(value, InputError) else to_json(value)
        yield text_digest(facts + text)[:12]


def _resume(path: Path, names: Sequence[str], work: Sequence[str]) -> tuple[int, int]:
    """Return the numbers of texts and of failures in a file of answers; drop a partial line."""
    if not path.exists() or path.stat().st_size == 0:
        return 0, 0
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    try:
        rows = [from_json(line) for line in whole.decode().split("\n")[:-1]]
        found = [(row["id"], row["work"]) for row in rows]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a file of answers: choose another --out") from error
    if found != [*zip(names, work, strict=True)][: len(found)]:
        raise InputError(
            f"{path} has answers to other questions or texts, or of another model: give another "
            "--out, or remove it"
        )
    if len(whole) < len(raw):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return len(rows), sum("error" in row for row in rows)


def _show(answers: "Answers") -> None:
    from lastword.text.question import Choice, Multi, Predicate

    rows = []
    for name, answer in answers.items():
        pairs = zip(map(str, answer.values), answer.probabilities.tolist(), strict=True)
        shares = sorted(pairs, key=lambda pair: -pair[1])
        several = isinstance(answer.question, Multi)
        probability = answer.probability if several else shares[0][1]
        others = shares[1:4] if isinstance(answer.question, Choice | Predicate) else shares
        words = answer.words + (", deferred" if answer.deferred else "")
        rest = ", ".join(f"{option} {share:.1%}" for option, share in others)
        rows.append((name, words, f"{probability:.1%}", rest))
    show(grid(("question", "answer", "probability", "others"), rows, {"probability"}))
    methods = ", ".join(dict.fromkeys(answer.method for answer in answers.values()))
    who = "the model's answers" if methods == "model" else f"by {methods}"
    calibrated = all(answer.calibrated for answer in answers.values())
    typer.echo(f"{who}; probabilities {'' if calibrated else 'not '}calibrated")
