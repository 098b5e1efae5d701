"""The laboratory animal's part of the demo: the embedded models on their invented world."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lastword.benchmarks.world import Form, Kind, Label, Split, items, parse_label
from lastword.demo.outcome import (
    BROKEN,
    HELD,
    REPAIRED,
    Outcome,
    Score,
    Watch,
    answer,
    average,
    score,
    worked,
)
from lastword.demo.section import Section
from lastword.demo.terminal import percent, put, table, worked_item
from lastword.model.embedded import Name
from lastword.theta import Theta
from lastword.tracer import Tracer

_OPERATORS = ("base", "decisive", "mix", "early")
_BAR_CELLS = 30

TITLE = "Laboratory animals: models made to have what the method looks for"
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


@dataclass(frozen=True)
class Early:
    """Items where `early` decided, MC1 of its scores and of scores that read no question.

    Attributes:
        items: How many items it decided.
        base: MC1 of the model's own scores on them.
        early: MC1 of S[:, 0].
        blind: MC1 of the model's own scores with the question left out.
        shortest: MC1 of taking the candidate with the fewest characters.
    """

    items: int
    base: float
    early: float
    blind: float
    shortest: float


def show_organism(console: Console, watch: Watch) -> Section:
    """Answer the world's benchmark with every embedded model; print what comes out.

    Args:
        console: Where results are printed.
        watch: Shows progress; see `outcome.answer`.
    """
    put(console, Text(TITLE, style="bold"), Text(NOTE))
    shown = [answered(name, watch) for name in get_args(Name)]
    theta = Theta()
    examples = worked(shown[0].outcomes, REPAIRED, BROKEN, HELD)
    put(console, _overall(shown), *(_by_fact(s) for s in shown), _operators(shown))
    put(console, Text(EARLY_NOTE), _early(shown))
    put(console, *(worked_item("Organism", rule, o, theta) for rule, o in examples.items()))
    figures = {s.name: figures_of(s) for s in shown}
    return Section(TITLE, "Organism", NOTE, (), (), examples, figures)


def answered(name: Name, watch: Watch) -> Answered:
    """The whole benchmark answered by one embedded model."""
    tracer = Tracer.demo(name)
    return Answered(name, tracer.invariant, answer(tracer, items(), watch))


def figures_of(shown: Answered) -> dict[str, Any]:
    """One model's scores by form, then by kind of fact and by template, as `multi/clean`."""
    parts: dict[str, list[Outcome]] = {}
    for form in get_args(Form):
        part = parts[form] = of_form(shown.outcomes, form)
        for kind in get_args(Kind):
            parts[f"{form}/{kind}"] = [o for o in part if label(o).kind == kind]
        for split in get_args(Split):
            parts[f"{form}/{split}"] = [o for o in part if label(o).split == split]
    scores = {part: asdict(score(some)) for part, some in parts.items()}
    return {"invariant": shown.invariant, **scores}


def label(outcome: Outcome) -> Label:
    """What the item is, as its id says."""
    return parse_label(str(outcome.item.id))


def of_form(outcomes: Sequence[Outcome], form: Form) -> list[Outcome]:
    """The multiple-choice or the binary items."""
    return [o for o in outcomes if label(o).form == form]


def early(outcomes: Sequence[Outcome]) -> Early:
    """What `early` did, beside the baselines that belong with it (method, section 6)."""
    fired = [o for o in outcomes if o.decision.operator == "early"]
    return Early(
        items=len(fired),
        base=average(o.mc1_base for o in fired),
        early=average(o.mc1 for o in fired),
        blind=average(o.mc1_of(o.blind) for o in fired),
        shortest=average(o.mc1_of(o.shortness) for o in fired),
    )


def _overall(shown: Sequence[Answered]) -> Table:
    made = _score_table("All items: what the model says, and what TRACE makes of it")
    for form in get_args(Form):
        for s in shown:
            made.add_row(f"{s.name}, {form}", *_cells(score(of_form(s.outcomes, form))))
        made.add_section()
    return made


def _by_fact(shown: Answered) -> Table:
    branch = f"I(M) = {shown.invariant:.2f}"
    made = _score_table(f"{shown.name}, {branch}: by kind of fact and by template")
    for form in get_args(Form):
        part = of_form(shown.outcomes, form)
        for kind in get_args(Kind):
            some = [o for o in part if label(o).kind == kind]
            made.add_row(f"{form}, {kind}", *_cells(score(some)))
        for split in get_args(Split):
            some = [o for o in part if label(o).split == split]
            made.add_row(f"{form}, {split} template", *_cells(score(some)))
        made.add_section()
    return made


def _score_table(title: str) -> Table:
    made = table(title)
    made.add_column("items")
    for name in ("n", "MC1 base", "TRACE", "MC2 base", "TRACE", "fixed", "broken"):
        made.add_column(name, justify="right")
    return made


def _cells(s: Score) -> tuple[str, ...]:
    shares = [percent(v) for v in (s.mc1_base, s.mc1, s.mc2_base, s.mc2)]
    return (str(s.items), *shares, str(s.fixed), str(s.broken))


def _operators(shown: Sequence[Answered]) -> Table:
    made = table("Which operator decides")
    for name in ("model", "operator", "items", "share", ""):
        made.add_column(name, justify="right" if name in ("items", "share") else "left")
    for s in shown:
        counts = Counter(o.decision.operator for o in s.outcomes)
        total = len(s.outcomes)
        for operator in _OPERATORS:
            bar = Bar(total, 0, counts[operator], width=_BAR_CELLS)
            share = percent(counts[operator] / total)
            made.add_row(s.name, operator, str(counts[operator]), share, bar)
        made.add_section()
    return made


def _early(shown: Sequence[Answered]) -> Table:
    made = table("Items that `early` decides: MC1")
    made.add_column("model")
    for name in ("n", "base", "early", "question-blind", "shortest answer"):
        made.add_column(name, justify="right")
    for s in shown:
        e = early(s.outcomes)
        shares = [percent(v) for v in (e.base, e.early, e.blind, e.shortest)]
        made.add_row(s.name, str(e.items), *shares)
    return made
