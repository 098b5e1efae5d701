"""`lastword compare`: TRACE, its peers and the baselines on the same items, in one pass."""

from typing import Annotated, Any, Literal

import typer

from lastword.cli.evaluate import counted_down
from lastword.cli.model import Model, load_decider, refuse_certificate, refuse_correction
from lastword.cli.output import printable, say, show_tables
from lastword.cli.progress import waiting
from lastword.cli.questions import Questions
from lastword.files.strict_json import to_json


def _list(context: Any, option: Any, value: bool) -> bool:
    """Print the table of methods, users' own among them, and stop.

    Of both options, whatever their order: it is printed once the second is read.
    """
    values = {**context.params, str(option.name): value}
    if not values.get("list_") or "as_json" not in values:
        return value
    from lastword.lab.evaluation.probed import PROBES
    from lastword.methods import catalogue

    rows = [(name, row.summary, row.source) for name, row in catalogue().items()]
    rows += [(name, summary, "method, section 19") for name, summary in PROBES.items()]
    if values["as_json"]:
        keys = ("name", "summary", "source")
        typer.echo(to_json([dict(zip(keys, row, strict=True)) for row in rows]))
        raise typer.Exit
    width = max(len(name) for name, *_ in rows)
    for name, summary, source in rows:
        typer.echo(f"{name:<{width}}  {printable(summary)} ({printable(source)})")
    raise typer.Exit


def compare(
    model: Model,
    *,
    benchmark: Annotated[str, "As in eval."],
    method: Annotated[
        list[str] | None, "A method, as --list names them; repeat it. Left out, it is all."
    ] = None,
    list_: Annotated[
        bool,
        typer.Option("--list", callback=_list, is_eager=True, help="List the methods, and stop."),
    ] = False,
    out: Annotated[
        str, typer.Option(metavar="PATH", help="Folder for the records; also s3://BUCKET/FOLDER.")
    ] = "compared",
    template: Annotated[str | None, "BENCHMARK/VARIANT or a Jinja file."] = None,
    questions: Questions,
    format: Annotated[
        Literal["md", "csv", "tex"] | None,
        "How it is printed; left out, for the eye, and md where it is piped.",
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", callback=_list, is_eager=True, help="Print what it finds as JSON."),
    ] = False,
) -> None:
    """Compare every correction on one model and one benchmark; records keep each one's scores."""
    refuse_certificate(model, "methods are compared as they are")
    refuse_correction(model, "name it as a --method")
    with waiting("reading the data"):
        from lastword.files.folder import locate
        from lastword.lab.evaluation.probed import PROBES, obstacle
        from lastword.lab.evaluation.runner import execute, prepare
        from lastword.lab.evaluation.work import Work
        from lastword.lab.report.comparison import comparison_tables, read_comparisons
        from lastword.methods import COMPARED, METHODS, entry, resolve
        from lastword.records.stored import read_cells

        names = [name for name in method or COMPARED if name not in PROBES] or ["base-mean"]
        for name in names:
            entry(name)  # an unknown one fails before the model is loaded
        (pair,) = questions.read([benchmark], [] if template is None else [template])
        root = locate(out)
        examples = pair[0].examples
        why = obstacle((e.candidates for e in examples), (e.truthful for e in examples))
        if any(example.messages is not None for example in examples):
            why = "prompts are conversations"
    probes = [name for name in method or PROBES if name in PROBES]
    if probes and why:
        say(f"lastword: {', '.join(probes)} left out: {why}")
    if not method and (others := {*METHODS} - {name.partition("@")[0] for name in names}):
        left = ", ".join(name for name in METHODS if name in others)
        say(f"lastword: left out, as they go by --method: {left}")
    decider = load_decider(model)
    with waiting("reading tokens"):
        methods = resolve(names, decider.tracer.facts)
        job = prepare(decider, Work(*pair, methods=methods, states=bool(probes) and not why))
    cell = counted_down(
        job.info, 1, lambda advance: execute(decider, job, root, advance=advance)
    ).cell
    with waiting("reading records"):
        (compared,) = read_comparisons(cell, read_cells(cell))
    show_tables(comparison_tables([compared]), "json" if as_json else format)
