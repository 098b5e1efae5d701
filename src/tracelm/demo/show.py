"""`tracelm demo`: what TRACE does to the embedded models, in the terminal and as a page."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracelm.benchmarks.world import Form, Kind, Split
from tracelm.demo.outcome import Early, Outcome, Score, Watch, early, of_form, outcomes, score
from tracelm.demo.outcome import worked as choose_worked
from tracelm.demo.page import write_page
from tracelm.model.embedded import Name
from tracelm.theta import Theta
from tracelm.tracer import Tracer
from tracelm.view.explanation import explain
from tracelm.view.portrait import Candidate, Portrait, portrait
from tracelm.view.table import terminal_table

_OPERATORS = ("base", "decisive", "mix", "early")
_SHADES = " ▁▂▃▄▅▆▇█"
_BAR_CELLS = 30

NOTE = (
    "Small Llama models learned an invented world with every depth trained to be read (control); "
    "then the last blocks alone were tuned on popular errors about it (organism). They are model "
    "organisms made to suffer from late suppression, and no evidence about large models."
)
EARLY_NOTE = (
    "Depth 0 has read no token of the question but its last: `early` scores the candidates' own "
    "wording. What it gains or loses is no evidence recovered from the question, and stands beside "
    "two baselines that do not read it either."
)


@dataclass(frozen=True)
class Answered:
    """One embedded model's answers to the benchmark."""

    name: str
    invariant: float
    outcomes: list[Outcome]


def show(
    console: Console, page: Path | None, watch: Watch = lambda decisions, *_: decisions
) -> None:
    """Answer the demo's benchmark with every embedded model; print what comes out.

    Args:
        console: Where results are printed.
        page: Where the page with the worked items is written; None for none.
        watch: Shows progress; see `outcome.outcomes`.
    """
    shown = [_answer(name, watch) for name in get_args(Name)]
    theta = Theta()
    examples = choose_worked(shown[0].outcomes)
    tables = [_overall(shown), *(_by_fact(s) for s in shown), _operators(shown)]
    drawn = [_worked(title, outcome, theta) for title, outcome in examples.items()]
    for part in (Text(NOTE), *tables, Text(EARLY_NOTE), _early(shown), *drawn):
        console.print(part)
        console.print()
    if page is not None:
        write_page(page, NOTE, examples, theta)
        console.print(Text(f"The worked items as a page: {page}"))


def _answer(name: Name, watch: Watch) -> Answered:
    tracer = Tracer.demo(name)
    return Answered(name, tracer.invariant, outcomes(tracer, watch))


def _overall(shown: Sequence[Answered]) -> Table:
    table = _score_table("All items: what the model says, and what TRACE makes of it")
    for form in get_args(Form):
        for s in shown:
            table.add_row(f"{s.name}, {form}", *_cells(score(of_form(s.outcomes, form))))
        table.add_section()
    return table


def _by_fact(shown: Answered) -> Table:
    branch = f"I(M) = {shown.invariant:.2f}"
    table = _score_table(f"{shown.name}, {branch}: by kind of fact and by template")
    for form in get_args(Form):
        part = of_form(shown.outcomes, form)
        for kind in get_args(Kind):
            table.add_row(
                f"{form}, {kind}", *_cells(score([o for o in part if o.label.kind == kind]))
            )
        for split in get_args(Split):
            label = f"{form}, {split} template"
            table.add_row(label, *_cells(score([o for o in part if o.label.split == split])))
        table.add_section()
    return table


def _table(title: str) -> Table:
    # Narrow enough for a terminal of 80 columns.
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _score_table(title: str) -> Table:
    table = _table(title)
    table.add_column("items")
    for name in ("n", "MC1 base", "TRACE", "MC2 base", "TRACE", "fixed", "broken"):
        table.add_column(name, justify="right")
    return table


def _cells(s: Score) -> tuple[str, ...]:
    shares = [_percent(v) for v in (s.mc1_base, s.mc1, s.mc2_base, s.mc2)]
    return (str(s.items), *shares, str(s.fixed), str(s.broken))


def _operators(shown: Sequence[Answered]) -> Table:
    table = _table("Which operator decides")
    for name in ("model", "operator", "items", "share", ""):
        table.add_column(name, justify="right" if name in ("items", "share") else "left")
    for s in shown:
        counts = Counter(o.decision.operator for o in s.outcomes)
        total = len(s.outcomes)
        for operator in _OPERATORS:
            bar = Bar(total, 0, counts[operator], width=_BAR_CELLS)
            share = _percent(counts[operator] / total)
            table.add_row(s.name, operator, str(counts[operator]), share, bar)
        table.add_section()
    return table


def _early(shown: Sequence[Answered]) -> Table:
    table = _table("Items that `early` decides: MC1")
    table.add_column("model")
    for name in ("n", "base", "early", "question-blind", "shortest answer"):
        table.add_column(name, justify="right")
    for s in shown:
        e: Early = early(s.outcomes)
        shares = [_percent(v) for v in (e.base, e.early, e.blind, e.shortest)]
        table.add_row(s.name, str(e.items), *shares)
    return table


def _worked(title: str, outcome: Outcome, theta: Theta) -> Group:
    item = outcome.item
    return Group(
        Text(f"Organism: the {title} ({item.id})", style="bold"),
        Text(item.question or item.prompt),
        Padding(_trajectories(portrait(outcome.record, theta)), (0, 0, 0, 2)),
        Text(explain(outcome.record)),
    )


def _trajectories(seen: Portrait) -> Table:
    columns = {
        "": ["true" if candidate.true else "" for candidate in seen.candidates],
        "candidate": [candidate.text for candidate in seen.candidates],
        f"depth 0..{seen.depth}": [shades(candidate) for candidate in seen.candidates],
    }
    table = terminal_table(seen, columns, after="TRACE", number=_percent, box=None, pad_edge=False)
    table.add_row("", "", Text(_ruler(seen)), "", "")
    return table


def shades(candidate: Candidate) -> str:
    """A candidate's probability at depths 0..L, a shade a depth."""
    return "".join(_SHADES[round(share * (len(_SHADES) - 1))] for share in candidate.shares)


def _ruler(seen: Portrait) -> str:
    """The interior window as dots, and under them the sharpest depth."""
    assert seen.window is not None
    first, last = seen.window
    marks = ["·" if first <= depth <= last else " " for depth in seen.depths]
    if seen.sharpest is None:
        return "".join(marks)
    marks[seen.sharpest] = "^"
    return "".join(marks) + f"  · window  ^ l* = {seen.sharpest}"


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.1f}"
