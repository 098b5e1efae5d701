"""`lastword bench`: what an answer costs with and without correction, beside others."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.model import Model, load_decider, refuse_certificate
from lastword.cli.output import check_writable, show, write_lines
from lastword.cli.progress import waiting
from lastword.cli.questions import Questions
from lastword.errors import InputError, ItemError
from lastword.files.shorten import counted
from lastword.files.strict_json import to_json

if TYPE_CHECKING:
    from rich.table import Table

    from lastword.decide.decider import Decider
    from lastword.lab.benchmarks import Dataset, Template
    from lastword.lab.timing.run import Bench
    from lastword.text.items import Item
    from lastword.text.tokens import EncodedItem


@dataclass(frozen=True)
class TimedItems:
    """Whose items are timed, and how often."""

    benchmark: Annotated[str, "Whose items to time; as in eval."] = "demo"
    data: Annotated[Path | None, "File or folder of the benchmark's data."] = None
    template: Annotated[str | None, "BENCHMARK/VARIANT or a Jinja file."] = None
    limit: Annotated[int, "How many questions.", typer.Option(min=1)] = 40
    rounds: Annotated[int, "Interleaved rounds; medians count.", typer.Option(min=1)] = 3

    def read(self) -> "tuple[Dataset, Template]":
        """The benchmark's examples, and the first of its templates."""
        templates = [] if self.template is None else [self.template]
        return Questions(self.data, self.limit).read([self.benchmark], templates)[0]


def bench(
    model: Model,
    timed: TimedItems,
    against: Annotated[
        list[str] | None,
        "plain base, padded base, plain trace, lm-eval hf; repeat it; first divides.",
    ] = None,
    out: Annotated[Path | None, "JSON file for the figures."] = None,
    as_json: Annotated[bool, "Print the figures as JSON."] = False,
) -> None:
    """Time base scoring and correction against the plain way, in one run, agreement first."""
    refuse_certificate(model, "nothing is answered here")
    if out is not None:
        check_writable(out)
    with waiting("reading the data"):
        from lastword.lab.timing.run import AGAINST, bench
        from lastword.methods.correction import require_pure

        dataset, template = timed.read()
    by_trace = model.correction in (None, "trace")
    plain = AGAINST if by_trace else AGAINST[:-1]
    names = tuple(against or plain)
    if unknown := [n for n in names if n not in (*AGAINST, "padded base")]:
        raise typer.BadParameter(
            f"--against knows {', '.join(AGAINST)}, padded base; not {unknown}"
        )
    decider = load_decider(model)
    require_pure(decider.correction)
    free = decider.correction.needs.content_free
    ready = _encode(decider, dataset.items(template, content_free=free))
    # It warns of every model that is in memory already.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with waiting("timing"):
        result = bench(decider, ready, rounds=timed.rounds, against=names)
    dtype, depth = decider.tracer.profile.precision, decider.tracer.profile.depth
    own = model.alias or model.label
    name = dataset.benchmark.name
    record = {"model": own, "benchmark": name, "dtype": dtype, "depth": depth}
    record |= {} if by_trace else {"correction": model.correction}
    figures = to_json(record | result.to_dict())
    if out is not None:
        write_lines(out, [figures])
    if as_json:
        typer.echo(figures)
    else:
        _show(result)


def _encode(decider: "Decider", items: "Sequence[Item]") -> "list[EncodedItem]":
    encoded = decider.encode(items)
    if failed := [e for e in encoded if isinstance(e, ItemError)]:
        raise InputError(f"{counted(len(failed), 'item')} cannot be timed; the first: {failed[0]}")
    return [e for e in encoded if not isinstance(e, ItemError)]


def _show(result: "Bench") -> None:
    from rich.table import Table

    show(
        f"{counted(result.items, 'item')}; staged and everything-read decisions "
        + ("agree" if result.same_decisions else "DIFFER")
    )
    first = next(name for name in result.seconds if name not in result.meters)
    table = Table("", "seconds", "an item", f"/ {first}", "off by, nats")
    for name, seconds in result.seconds.items():
        agrees, ratio = result.agrees(name), result.ratio(name, first)
        table.add_row(
            name,
            f"{seconds:.3f}" if agrees else "–",
            f"{seconds / result.items:.4f}" if agrees else "–",
            "–" if ratio is None else f"{ratio:.3f}",
            f"{result.agreement[name]:.1e}",
        )
    show(table, _stages(result))
    show(f"peak memory above the loaded model: {result.peak_bytes / 2**20:.0f} MiB")


def _stages(result: "Bench") -> "Table":
    from rich.table import Table

    meters = result.meters.values()
    table = Table("", *result.meters)
    table.add_row("distinct tokens", *(str(m.tokens) for m in meters))
    table.add_row("head reads", *(str(m.reads) for m in meters))
    for stage in ("plan", "trunk", "readout", "scorer"):
        table.add_row(f"{stage}, seconds", *(f"{m.seconds.get(stage, 0):.3f}" for m in meters))
    table.add_row("rest, seconds", *(f"{m.rest:.3f}" for m in meters))
    return table
