"""Verdict of labelled examples on a model: five parts, which `verdict.json` holds as objects."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lastword.probes.controls import Addition
from lastword.trust.objective import ACCURACY
from lastword.tryout.prompts import WITH_PROBE
from lastword.tryout.sets import Sets

FILE, SCHEMA = "verdict.json", 1


@dataclass(frozen=True)
class Standing:
    """One way to answer, on the labelled items. Shares lie in [0, 1].

    Attributes:
        right: Accuracy; ties count as the share of the tied that are right.
        low: Lower end of its exact 95% interval; that of chance is chance itself.
        high: Upper end.
        fixed: Wrong answers of the model that it corrects; None if it is no correction.
        broken: Right answers of the model that it makes wrong.
        p: McNemar's exact test against the model, two-sided, over groups of examples.
        items: How many of the labelled items it answered; None for all of them.
        worth: Mean worth of an answer on the objective: mean recall, or minus the mean cost. None
            for accuracy, and if it was not measured.
    """

    name: str
    right: float
    low: float
    high: float
    fixed: int | None = None
    broken: int | None = None
    p: float | None = None
    items: int | None = None
    worth: float | None = None


@dataclass(frozen=True)
class Class:
    """The recall of one label.

    Attributes:
        items: The number of rows with this label.
        model: Recall of the model.
        corrected: Recall of the best contestant.
        p: McNemar's exact test between the two, two-sided, over groups of examples.
        at_least: Guaranteed recall of the second (`slices.found_at_least`), or None.
    """

    label: str
    items: int
    model: float
    corrected: float
    p: float
    at_least: float | None = None


@dataclass(frozen=True)
class RowAnswer:
    """The answers to a row: the right one, the model's, and that of the best contestant."""

    id: str
    truth: str
    model: str
    shown: str


@dataclass(frozen=True)
class Examples:
    """The table.

    Attributes:
        model: The model's name.
        items: Labelled rows that the model answered.
        notes: Guesses about the table, and what looks wrong in it, in words.
    """

    model: str
    items: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standings:
    """The contest.

    Attributes:
        lines: Chance, the model without the text, the model, each correction, probes, baselines.
        best: The contestant that is certified; else the correction or probe that is best on the
            objective. `classes` and `answers` are about it.
        correction: The correction with the best accuracy.
        probe: The probe that labels make, or the certified one; None if there is none.
        cost: Cost of an answer of the probe, in answers of the model.
        simple: The largest class or the bag of words, if it is at most one standard error below
            `best` on the objective; else None.
        classes: Recall per label; empty if options differ by row.
        answers: The answers to each row: of `best` as the certificate allows; those of a probe are
            cross-validated.
        confusions: The model's most frequent mistakes: truth, answer, count.
        prompts: The model under other prompts, and a cross-validated probe under the best of
            them, on rows that are no examples. `fixed` and `broken` are on the same rows: of the
            model against the prompt in use, of a probe against `best`.
        prompts_left_out: Prompts that were not tested, with the reason.
        objective: `accuracy`, `balanced` or `cost`: what contestants are ranked and certified by.
        constant: The answer of the baseline that gives all texts the same; None if options differ.
        auc: Area under the ROC curve of the model and of the tested probe, on the labels held out
            from the probe; None unless there are two options.
    """

    lines: tuple[Standing, ...]
    best: str
    correction: str
    probe: str | None = None
    cost: float | None = None
    simple: str | None = None
    classes: tuple[Class, ...] = ()
    answers: tuple[RowAnswer, ...] = ()
    confusions: tuple[tuple[str, str, int], ...] = ()
    prompts: tuple[Standing, ...] = ()
    prompts_left_out: tuple[str, ...] = ()
    objective: str = ACCURACY
    constant: str | None = None
    auc: tuple[float, float] | None = None

    def line(self, name: str) -> Standing:
        """Return the line of that name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def model(self) -> Standing:
        """The model without any help."""
        return self.line("the model")

    def value(self, line: Standing) -> float:
        """Return what a line is ranked by: its accuracy, or its worth on the objective."""
        return line.right if line.worth is None else line.worth

    @property
    def useless(self) -> bool:
        """True if the model is not shown to be better than chance."""
        return self.model.low <= self.line("chance").right

    @property
    def macro(self) -> tuple[float, float]:
        """Mean recall over labels, of the model and of the best contestant."""
        recalls = [(one.model, one.corrected) for one in self.classes]
        return (np.nan, np.nan) if not recalls else tuple(np.mean(recalls, axis=0).tolist())

    @property
    def changes(self) -> tuple[RowAnswer, ...]:
        """Rows to which the best contestant gives another answer than the model."""
        return tuple(row for row in self.answers if row.shown != row.model)

    @property
    def better_prompt(self) -> Standing | None:
        """The other prompt under which the model is shown to be right more often."""
        return self._better(probe=False)

    @property
    def better_probe(self) -> Standing | None:
        """The probe under another prompt that is shown to be right more often than `best`."""
        return self._better(probe=True)

    def _better(self, *, probe: bool) -> Standing | None:
        those = [one for one in self.prompts if one.name.endswith(WITH_PROBE) == probe]
        gains = [one for one in those if (one.fixed or 0) > (one.broken or 0)]
        proven = [one for one in gains if (one.p or 0.0) * len(those) < 0.05]
        return max(proven, key=lambda one: one.right, default=None)


@dataclass(frozen=True)
class Guarantee:
    """The certificate.

    Attributes:
        promise: `gain` or `breaks`.
        alpha: Maximum share of all answers broken, for `breaks`.
        delta: Maximum probability that the guarantee does not hold.
        least: Labels without which nothing can be certified.
        needed: Labels that would certify the best contestant if the rates stay; None if it is
            certified, or if no number would do.
        method: The certified method; None if nothing is certified, as are the next four.
        policy: What the certificate allows, in words.
        line: Accuracy under the certificate; of a probe cross-validated.
        tested: The labels that judged it.
        net_at_least: Lower bound of the gain in accuracy.
        over_baselines: Lower bound of the gain over the best baseline; None if no gain over it is
            proven.
        baselines: The model and the baselines on the labels that judged the method. `fixed` and
            `broken` count what the method makes of their answers.
        rivals: Controls that never read the text and would be certified for as much, in words.
        sets: Prediction sets; None unless asked for.
    """

    promise: str
    alpha: float
    delta: float
    least: int
    needed: int | None = None
    method: str | None = None
    policy: str | None = None
    line: Standing | None = None
    tested: Standing | None = None
    net_at_least: float | None = None
    over_baselines: float | None = None
    baselines: tuple[Standing, ...] = ()
    rivals: tuple[str, ...] = ()
    sets: Sets | None = None


@dataclass(frozen=True)
class DepthAccuracy:
    """Accuracy by depth, and by number of labels.

    Attributes:
        by_depth: Accuracy through the model's head, and of a probe by leave-one-out, per depth.
        curve: Numbers of labels and leave-one-out accuracy of a probe fitted to them.
        middle: Gain of depths below the last over the answers' wording and the last depth
            (method, section 15); None if it was not to be fitted.
    """

    by_depth: tuple[tuple[float, float], ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    middle: Addition | None = None


@dataclass(frozen=True)
class Advice:
    """The verdict in words.

    Attributes:
        headline: What to run, its gain and its cost; or what is likely and what would prove it.
        guarantee: Sentences about the certificate, or what would lead to one.
        details: All other sentences, by what they are about.
        chart: A bar for the model and for each contestant that matters most.
        picture: A bar per line of the contest.
        by_class: A line per label.
        commands: The commands that use the result, each after a line that says what it does.
    """

    headline: str = ""
    guarantee: tuple[str, ...] = ()
    details: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    chart: tuple[str, ...] = ()
    picture: tuple[str, ...] = ()
    by_class: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()

    def lines(self, *, verbose: bool = False) -> Iterator[str]:
        """Yield the text that a terminal shows; `verbose` has every bar and every sentence."""
        yield from (self.headline, "", *(self.picture if verbose else self.chart))
        details = [sentence for some in self.details.values() for sentence in some]
        for part in (
            *([self.by_class] if verbose else []),
            self.guarantee,
            *([details] if verbose else []),
            self.commands,
        ):
            yield from ["", *part] if part else []


@dataclass(frozen=True)
class Verdict:
    """Verdict of labelled examples on a model, its corrections and probes."""

    table: Examples
    contest: Standings
    certificate: Guarantee
    depths: DepthAccuracy = field(default_factory=DepthAccuracy)
    advice: Advice = field(default_factory=Advice)

    def __str__(self) -> str:
        """Return all of its text."""
        return "\n".join(self.advice.lines(verbose=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `verdict.json`, as plain JSON values."""
        values = asdict(self)
        values["contest"] |= {"macro": self.contest.macro, "useless": self.contest.useless}
        return {"schema": SCHEMA, **values}
