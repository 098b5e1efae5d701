"""`tracelm bench`: what an answer costs with and without correction, beside others."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracelm.cli.model import ModelOptions, takes_model
from tracelm.cli.output import check_writable, to_json
from tracelm.cli.progress import waiting
from tracelm.errors import InputError, ItemError

if TYPE_CHECKING:
    from rich.table import Table

    from tracelm.bench.run import Bench

# Nats a candidate. Half-precision contenders round their logits, ours by default do not.
TOLERANCE = {"float16": 0.125, "bfloat16": 1.0}


@takes_model
def bench(
    model: ModelOptions,
    benchmark: Annotated[str, typer.Option(help="Whose items to time; as in eval.")] = "demo",
    data: Annotated[
        Path | None, typer.Option(help="File or folder of the benchmark's data.")
    ] = None,
    template: Annotated[str | None, typer.Option(help="BENCHMARK/VARIANT or a Jinja file.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many questions.")] = 40,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds; medians count.")] = 3,
    against: Annotated[
        list[str] | None,
        typer.Option(help="plain base, padded base, plain trace, lm-eval hf; repeat it."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
) -> None:
    """Time base scoring and correction against the plain way, in one run, agreement first."""
    if out is not None:
        check_writable(out)
    with waiting("reading the data"):
        from tracelm.bench.run import AGAINST, bench
        from tracelm.benchmarks import find, templates_for

        chosen = find(benchmark)
        [used] = templates_for([chosen], [template] if template else [])[chosen.name][:1]
        items = chosen.load(data, limit=limit, seed=None).items(used)
    names = tuple(against or AGAINST)
    if unknown := [n for n in names if n not in (*AGAINST, "padded base")]:
        raise typer.BadParameter(
            f"--against knows {', '.join(AGAINST)}, padded base; not {unknown}"
        )
    tracer = model.load()
    encoded = tracer.encode(items)
    if failed := [e for e in encoded if isinstance(e, ItemError)]:
        raise InputError(f"{len(failed)} items cannot be timed; the first: {failed[0]}")
    ready = [e for e in encoded if not isinstance(e, ItemError)]
    with waiting("timing"):
        result = bench(tracer, ready, rounds=rounds, against=names)
    dtype = tracer.describe()["dtype"]
    record = {
        "model": model.model,
        "benchmark": chosen.name,
        "dtype": dtype,
        "depth": tracer.backbone.depth,
    }
    if out is not None:
        out.write_text(to_json(record | result.to_dict()) + "\n", encoding="utf-8")
    _show(result, TOLERANCE.get(dtype, 1e-4))


def _show(result: "Bench", tolerance: float) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(
        f"{result.items} items; staged and everything-read decisions "
        + ("agree" if result.same_decisions else "DIFFER")
    )
    table = Table("", "seconds", "an item", "/ plain base", "off by, nats")
    plain = result.seconds.get("plain base")
    for name, seconds in result.seconds.items():
        off = result.agreement[name]
        told = result.same_decisions and off <= tolerance
        table.add_row(
            name,
            f"{seconds:.2f}" if told else "–",
            f"{seconds / result.items:.4f}" if told else "–",
            f"{seconds / plain:.3f}" if told and plain else "–",
            f"{off:.1e}",
        )
    console.print(table)
    console.print(_stages(result))
    console.print(f"peak memory above the loaded model: {result.peak_bytes / 2**20:.0f} MiB")


def _stages(result: "Bench") -> "Table":
    """Where ours spend their seconds, a column each, and how far that is from the floor."""
    from rich.table import Table

    meters = result.meters.values()
    table = Table("", *result.meters)
    table.add_row("distinct tokens", *(str(m.tokens) for m in meters))
    table.add_row("head reads", *(str(m.reads) for m in meters))
    for stage in ("plan", "trunk", "readout", "scorer"):
        table.add_row(f"{stage}, seconds", *(f"{m.seconds.get(stage, 0):.2f}" for m in meters))
    table.add_row("rest, seconds", *(f"{m.rest:.2f}" for m in meters))
    if result.floors:
        floors = [result.floors[name].total for name in result.meters]
        table.add_row("floor, seconds", *(f"{floor:.2f}" for floor in floors))
        ratios = (m.total / floor for m, floor in zip(meters, floors, strict=True))
        table.add_row("total / floor", *(f"{ratio:.2f}" for ratio in ratios))
    return table
