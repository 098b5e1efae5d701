"""`lastword bench`: times answers with and without correction, and other programs."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.evaluate import read_benchmarks
from lastword.cli.model import load_decider, load_options
from lastword.cli.output import check_writable, grid, show, write_lines
from lastword.cli.progress import waiting
from lastword.errors import InputError, ItemError
from lastword.files.strict_json import to_json
from lastword.files.wording import counted

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.lab.timing import Bench
    from lastword.text.items import Item
    from lastword.text.tokens import EncodedItem


def bench(
    *,
    model: opt.Model,
    benchmark: Annotated[
        str, typer.Option(help="Benchmark whose items are timed, as in eval.")
    ] = "demo",
    data: opt.Data = None,
    template: opt.BenchmarkTemplate = None,
    limit: Annotated[int, typer.Option(min=1, help="Number of questions.")] = 40,
    rounds: Annotated[
        int, typer.Option(min=1, help="Interleaved rounds; the medians are reported.")
    ] = 3,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="plain base, plain trace or lm-eval hf; repeatable. Ratios are to the first."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the figures.")] = None,
    json: opt.Json = False,
    correction: opt.Correction = None,
    loading: opt.Loading,
) -> None:
    """Time scoring with and without correction against plain implementations, in one run.

    Prints TRACE's cost as three ratios: packed over packed, plain over plain, packed over plain.
    """
    options = load_options(model, loading, opt.AnswerOptions(correction=correction))
    if out is not None:
        check_writable(out)
    with waiting("reading the data"):
        from lastword.lab.timing import AGAINST, bench
        from lastword.methods.contract import require_pure

        templates = [] if template is None else [template]
        dataset, first = read_benchmarks([benchmark], templates, data, limit)[0]
    by_trace = correction in (None, "trace")
    plain = AGAINST if by_trace else AGAINST[:-1]
    names = tuple(against or plain)
    if unknown := [name for name in names if name not in AGAINST]:
        raise typer.BadParameter(f"--against knows {', '.join(AGAINST)}, not {unknown}")
    decider = load_decider(options)
    require_pure(decider.correction)
    free = decider.correction.needs.content_free
    ready = _encode(decider, dataset.items(first, content_free=free))
    # lm-evaluation-harness warns about every model that is already in memory.
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    with waiting("timing"):
        result = bench(decider, ready, rounds=rounds, against=names)
    profile = decider.tracer.profile
    record = {
        "model": options.alias or options.label,
        "benchmark": dataset.benchmark.name,
        "dtype": profile.precision,
        "depth": profile.depth,
    }
    record |= {} if by_trace else {"correction": correction}
    figures = to_json(record | result.to_dict())
    if out is not None:
        write_lines(out, [figures])
    if json:
        typer.echo(figures)
    else:
        _show(result)


def _encode(decider: "Decider", items: "Sequence[Item]") -> "list[EncodedItem]":
    encoded = decider.encode(items)
    if failed := [e for e in encoded if isinstance(e, ItemError)]:
        raise InputError(f"{counted(len(failed), 'item')} cannot be timed; the first: {failed[0]}")
    return [e for e in encoded if not isinstance(e, ItemError)]


def _show(result: "Bench") -> None:
    from lastword.lab.timing import NAMES

    show(
        f"{counted(result.items, 'item')}; staged and everything-read decisions "
        + ("agree" if result.same_decisions else "DIFFER")
    )
    first = next(name for name in result.seconds if name not in NAMES.values())
    heads = ("seconds", "an item", f"/ {first}", "off by, nats")
    rows = []
    for name, seconds in result.seconds.items():
        ratio = result.ratio(name, first)
        times = [f"{seconds:.3f}", f"{seconds / result.items:.4f}"]
        times = times if result.agrees(name) else ["–", "–"]
        ratios = "–" if ratio is None else f"{ratio:.3f}"
        rows.append((name, *times, ratios, f"{result.agreement[name]:.1e}"))
    show(grid(("", *heads), rows, heads))
    for words, ratio in result.costs.items():
        show(f"{words}: {'not timed' if ratio is None else f'{ratio:.2f}x'}")
