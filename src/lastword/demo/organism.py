"""The laboratory animal's part of the demo: the embedded models on their invented world."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

from rich.bar import Bar
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lastword.benchmarks.demo import Form, Kind, Split, items, parse_label
from lastword.demo.certificate import TERMS
from lastword.demo.outcome import (
    GATED,
    Outcome,
    Score,
    Watch,
    answer,
    average,
    examples,
    score,
)
from lastword.demo.section import Section
from lastword.demo.story import story
from lastword.demo.terminal import percent, table, worked_item, write
from lastword.model.embedded import Name
from lastword.theta import Theta
from lastword.tracer import Tracer

_OPERATORS = ("base", "decisive", "mix", "early")
_BAR_CELLS = 30

WORLD = "the invented world"

TITLE = "Laboratory animals: models made to have what the method looks for"
NOTE = (
    "Small Llama models learned an invented world with every depth trained to be read (control); "
    "then the last blocks alone were tuned on popular errors about it (organism). They are model "
    "organisms made to suffer from late suppression, and no evidence about large models."
)
NOTE_SHORT = (
    "This model was made to lose late what it knew, the fault that TRACE looks for: it says "
    "nothing about other models. On real ones correction gains on some questions and loses on "
    "others."
)
EARLY_NOTE = (
    "Depth 0 has read no token of the question but its last: `early` scores the candidates' own "
    "wording. What it gains or loses is no evidence recovered from the question, and stands beside "
    "two baselines that do not read it either."
)


@dataclass(frozen=True)
class Answers:
    """One embedded model's answers to the benchmark."""

    name: str
    tracer: Tracer
    outcomes: list[Outcome]

    @property
    def invariant(self) -> float:
        """I(M)."""
        return self.tracer.invariant


def show_organism(console: Console, watch: Watch) -> Section:
    """Answer the world's benchmark with every embedded model; print what comes out.

    Args:
        console: Where results are printed.
        watch: Shows progress; see `outcome.answer`.
    """
    write(console, Text(TITLE, style="bold"), Text(NOTE))
    models = [answers(name, watch) for name in get_args(Name)]
    theta = Theta()
    first = models[0]
    tale = story(first.tracer, WORLD, first.outcomes, TERMS)
    cases = {**tale.examples, **examples(first.outcomes, GATED)}
    write(console, _overall(models), *(_by_fact(m) for m in models), _operators(models))
    write(console, Text(EARLY_NOTE), early_table({m.name: m.outcomes for m in models}))
    write(console, *(worked_item("Organism", rule, o, theta) for rule, o in cases.items()))
    figures = {m.name: figures_of(m) for m in models}
    return Section(TITLE, "Organism", NOTE, tale, (), (), cases, figures)


def short(watch: Watch) -> Section:
    """The organism's story from what decides alone; its two examples are read whole."""
    tracer = Tracer.demo("organism")
    outcomes = answer(tracer, items(), watch, whole=False)
    tale = story(tracer, WORLD, outcomes, TERMS)
    whole = answer(tracer, [o.item for o in tale.examples.values()], lambda some, *_: some)
    cases = dict(zip(tale.examples, whole, strict=True))
    return Section(TITLE, "Organism", NOTE_SHORT, tale, (), (), cases, tale.figures())


def answers(name: Name, watch: Watch) -> Answers:
    """The whole benchmark answered by one embedded model."""
    tracer = Tracer.demo(name)
    return Answers(name, tracer, answer(tracer, items(), watch))


def figures_of(model: Answers) -> dict[str, Any]:
    """One model's scores by form, then by kind of fact and by template, as `multi/clean`."""
    scores: dict[str, Any] = {}
    for form in get_args(Form):
        part = of_form(model.outcomes, form)
        scores[form] = asdict(score(part))
        scores |= {f"{form}/{name}": asdict(score(some)) for name, some in _parted(part).items()}
    return {"invariant": model.invariant, **scores}


def of_form(outcomes: Sequence[Outcome], form: Form) -> list[Outcome]:
    """The multiple-choice or the binary items."""
    return [o for o in outcomes if parse_label(str(o.item.id)).form == form]


def _parted(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Items by kind of fact, then by template."""
    labels = [parse_label(str(o.item.id)) for o in outcomes]
    pairs = list(zip(outcomes, labels, strict=True))
    kinds = {kind: [o for o, own in pairs if own.kind == kind] for kind in get_args(Kind)}
    splits = {split: [o for o, own in pairs if own.split == split] for split in get_args(Split)}
    return kinds | splits


def _overall(models: Sequence[Answers]) -> Table:
    rows = _score_table("All items: what the model says, and what TRACE makes of it")
    for form in get_args(Form):
        for s in models:
            rows.add_row(f"{s.name}, {form}", *_cells(score(of_form(s.outcomes, form))))
        rows.add_section()
    return rows


def _by_fact(model: Answers) -> Table:
    branch = f"I(M) = {model.invariant:.2f}"
    rows = _score_table(f"{model.name}, {branch}: by kind of fact and by template")
    for form in get_args(Form):
        for name, some in _parted(of_form(model.outcomes, form)).items():
            suffix = " template" if name in get_args(Split) else ""
            rows.add_row(f"{form}, {name}{suffix}", *_cells(score(some)))
        rows.add_section()
    return rows


def _score_table(title: str) -> Table:
    rows = table(title)
    rows.add_column("items")
    for name in ("n", "MC1 base", "TRACE", "MC2 base", "TRACE", "fixed", "broken"):
        rows.add_column(name, justify="right")
    return rows


def _cells(s: Score) -> tuple[str, ...]:
    shares = [percent(v) for v in (s.mc1_base, s.mc1, s.mc2_base, s.mc2)]
    return (str(s.items), *shares, str(s.fixed), str(s.broken))


def _operators(models: Sequence[Answers]) -> Table:
    rows = table("Which operator decides")
    for name in ("model", "operator", "items", "share", ""):
        rows.add_column(name, justify="right" if name in ("items", "share") else "left")
    for s in models:
        counts = Counter(o.decision.operator for o in s.outcomes)
        total = len(s.outcomes)
        for operator in _OPERATORS:
            bar = Bar(total, 0, counts[operator], width=_BAR_CELLS)
            share = percent(counts[operator] / total)
            rows.add_row(s.name, operator, str(counts[operator]), share, bar)
        rows.add_section()
    return rows


def early_table(models: Mapping[str, Sequence[Outcome]]) -> Table:
    """Tabulate MC1 of what `early` decides, beside scores that read no question (method, 6)."""
    rows = table("Items that `early` decides: MC1")
    rows.add_column("model")
    for heading in ("n", "base", "early", "question-blind", "shortest answer"):
        rows.add_column(heading, justify="right")
    for name, outcomes in models.items():
        fired = [o for o in outcomes if o.decision.operator == "early"]
        each = [(o.mc1_base, o.mc1, o.mc1_of(o.blind), o.mc1_of(o.shortness)) for o in fired]
        means = (average(own[i] for own in each) for i in range(4))
        rows.add_row(name, str(len(fired)), *map(percent, means))
    return rows
