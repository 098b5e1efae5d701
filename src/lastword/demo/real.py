"""The real model's part of the demo: three answers, then its figures on `everyday`."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from lastword.benchmarks.everyday import EVERYDAY
from lastword.demo.certificate import TERMS
from lastword.demo.figures import MODEL, SORTS, TRACE, Figures, everyday, figures
from lastword.demo.outcome import STAYS, Watch, answer, average, examples
from lastword.demo.section import Grid, Row, Section
from lastword.demo.story import story
from lastword.demo.terminal import grid_table, percent, shades, worked_item, write

if TYPE_CHECKING:
    from lastword.tracer import Tracer

PUBLISHED = "smollm2-135m"
NAME = f"lastword/{PUBLISHED}"
TITLE = "A real language model on questions about the real world"
NOTE = (
    "SmolLM2-135M-Instruct in 4 bits, a small language model that was not made for this, answers "
    "`everyday`: plain facts, popular errors, and pairs, which are two questions over the same "
    "candidates. What does not read the question gets no pair right."
)
ADVICE = (
    "Whether correction helps depends on the model and on the items. Before you switch it on, run "
    "`lastword certify` on labelled items of your own (docs/trust.md). Of these it says:"
)


def show_real(console: Console, tracer: "Tracer", watch: Watch) -> Section:
    """Answer `everyday` with a real model; print three items, then what came out of all.

    Args:
        console: Where results are printed.
        tracer: The model.
        watch: Shows progress; see `outcome.answer`.
    """
    write(console, Text(TITLE, style="bold"), Text(NOTE))
    outcomes = answer(tracer, everyday(), watch)
    numbers = figures(tracer, outcomes)
    tale = story(tracer, EVERYDAY.name, outcomes, TERMS)
    cases = {**tale.examples, **examples(outcomes, STAYS)}
    grids = (_choosers(numbers), _operators(numbers), _depths(numbers))
    judgement = numbers.judgement.sentence
    texts = (judgement, _alike(numbers), ADVICE, *numbers.certificate[1:3])
    name = numbers.model.removeprefix("lastword/")
    write(console, *(worked_item(name, rule, o, tracer.theta) for rule, o in cases.items()))
    write(console, *map(grid_table, grids), *map(Text, texts))
    return Section(TITLE, name, NOTE, tale, grids, texts, cases, asdict(numbers))


def _choosers(numbers: Figures) -> Grid:
    title = (
        f"{numbers.model} on everyday: {numbers.items} items, {numbers.pairs} pairs among them; MC1"
    )
    counts = {TRACE: (str(numbers.judgement.fixed), str(numbers.judgement.broken))}
    rows = tuple(
        (
            name,
            percent(right.mc1),
            *(percent(right.sorts[sort]) for sort in SORTS),
            percent(right.pairs),
            *counts.get(name, ("", "")),
        )
        for name, right in numbers.choosers.items()
    )
    return Grid(title, ("chooses", "all", *SORTS, "both of pair", "fixed", "broken"), rows)


def _operators(numbers: Figures) -> Grid:
    rows = tuple(
        (
            name,
            str(some.items),
            *(percent(share) for share in (some.mc1_base, some.mc1, some.mc1_blind)),
            str(some.fixed),
            str(some.broken),
        )
        for name, some in numbers.operators.items()
    )
    columns = ("operator", "items", MODEL, TRACE, "question left out", "fixed", "broken")
    return Grid("By the operator that decides: MC1", columns, rows)


def _depths(numbers: Figures) -> Grid:
    """Strips over depth, and the last depth beside the mean of those that `decisive` may take."""
    depths, last = numbers.depths, len(numbers.depths.mc1) - 1

    def row(name: str, values: list[float], strip: str, number: Callable[[float], str]) -> Row:
        return name, strip, number(average(values[1:last])), number(values[last])

    rows = (
        row("MC1", depths.mc1, shades(depths.mc1), percent),
        row("pairs answered alike", depths.alike, shades(depths.alike), percent),
        row("two best apart, nats", depths.apart, "", "{:.2f}".format),
    )
    columns = ("by depth", f"0..{last}", f"1..{last - 1}", f"{last}")
    return Grid(f"A depth read as if it were the last; 1..{last - 1} is a mean", columns, rows)


def _alike(numbers: Figures) -> str:
    depths = numbers.depths
    return (
        f"`decisive` decides {depths.decided} questions of pairs. The depth that it trusts gives "
        f"the pair's other question the same answer in {depths.decided_alike} of them: an answer "
        "that does not depend on which of the two was asked."
    )
