"""Verdict of a trial, in five parts, which are the objects of `verdict.json`."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from lastword.tryout.prompts import WITH_PROBE

FILE, SCHEMA = "verdict.json", 1
ACCURACY, BALANCED = "accuracy", "balanced"


@dataclass(frozen=True)
class Standing:
    """The results of one contestant on the labelled items. Shares lie in [0, 1].

    Attributes:
        name: The contestant's name.
        right: Accuracy; a tie counts as the share of right answers among the tied ones.
        low: Lower end of the exact 95% interval; for chance, equal to `right`.
        high: Upper end of the interval.
        fixed: Number of the model's wrong answers that it corrects; None if it corrects nothing.
        broken: Number of the model's right answers that it makes wrong.
        p: p-value of McNemar's exact test against the model, two-sided, over groups of examples.
        items: Number of labelled items that it answered; None for all of them.
        worth: Mean recall over the classes, if it ranks the contestants; else None.
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
    """

    label: str
    items: int
    model: float
    corrected: float


@dataclass(frozen=True)
class RowAnswer:
    """The answers to one row: the right one, the model's, and the best contestant's."""

    id: str
    truth: str
    model: str
    shown: str


@dataclass(frozen=True)
class Examples:
    """The labelled table.

    Attributes:
        model: The model's name.
        items: Number of labelled rows that the model answered.
        notes: Guesses and warnings about the table.
    """

    model: str
    items: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Standings:
    """The contest.

    Attributes:
        lines: Chance, the model without the text, the model, each correction, probes, baselines.
        best: The certified contestant, or else the correction or probe that is best by the
            objective. `classes` and `answers` are about it.
        correction: The correction with the best accuracy.
        probe: The certified probe, or else the first one; None if there is none.
        cost: Cost of an answer by the probe, relative to the model's answer.
        simple: The largest class or the bag of words, if it is at most one standard error below
            `best` by the objective; else None.
        classes: Recall per label; empty if options differ by row.
        answers: The answers to each row by `best`, limited by the certificate; those of a probe
            are cross-validated.
        prompts: The model with other prompts, and a cross-validated probe with the best of them,
            on rows that are not examples. `fixed` and `broken` compare on the same rows: the
            model with its current prompt, a probe with `best`.
        prompts_left_out: Prompts that were not tested, with the reason.
        objective: `accuracy` or `balanced` (mean recall); contestants are ranked by it.
        constant: The answer of the constant baseline; None if options differ by row.
    """

    lines: tuple[Standing, ...]
    best: str
    correction: str
    probe: str | None = None
    cost: float | None = None
    simple: str | None = None
    classes: tuple[Class, ...] = ()
    answers: tuple[RowAnswer, ...] = ()
    prompts: tuple[Standing, ...] = ()
    prompts_left_out: tuple[str, ...] = ()
    objective: str = ACCURACY
    constant: str | None = None

    def line(self, name: str) -> Standing:
        """Return the line with this name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def model(self) -> Standing:
        """The uncorrected model."""
        return self.line("the model")

    def value(self, line: Standing) -> float:
        """Return the figure that a line is ranked by: accuracy or mean recall."""
        return line.right if line.worth is None else line.worth

    @property
    def useless(self) -> bool:
        """True if the model's interval does not lie above chance."""
        return self.model.low <= self.line("chance").right

    @property
    def macro(self) -> tuple[float, float]:
        """Mean recall over labels, of the model and of the best contestant."""
        recalls = [(one.model, one.corrected) for one in self.classes]
        return (np.nan, np.nan) if not recalls else tuple(np.mean(recalls, axis=0).tolist())

    @property
    def better_prompt(self) -> Standing | None:
        """The prompt with which the model is significantly more accurate, or None."""
        return self._better(probe=False)

    @property
    def better_probe(self) -> Standing | None:
        """The probe with another prompt that is significantly better than `best`, or None."""
        return self._better(probe=True)

    def _better(self, *, probe: bool) -> Standing | None:
        prompts = [one for one in self.prompts if one.name.endswith(WITH_PROBE) == probe]
        gains = [one for one in prompts if (one.fixed or 0) > (one.broken or 0)]
        # Bonferroni's correction over all prompts of a kind.
        proven = [one for one in gains if (one.p or 0.0) * len(prompts) < 0.05]
        return max(proven, key=lambda one: one.right, default=None)


@dataclass(frozen=True)
class Guarantee:
    """The certificate.

    Attributes:
        promise: `gain` or `breaks`.
        alpha: Maximum share of all answers broken, for `breaks`.
        delta: Maximum probability that the guarantee does not hold.
        least: Minimum number of labels to certify anything.
        needed: Number of labels that would certify the best contestant if the rates stay the same;
            None if it is certified, or if no number would be enough.
        method: The certified method; None if nothing is certified, like the next four.
        policy: The overrides that the certificate allows, in words.
        line: Accuracy under the certificate; a probe's is cross-validated.
        tested: Accuracy on the labels that tested the method.
        net_at_least: Lower bound of the gain in accuracy.
        over_baselines: Lower bound of the gain over the best baseline; None if no gain over it is
            proven.
        baselines: The model and the baselines on the labels that tested the method. `fixed` and
            `broken` count the method's changes to their answers.
        rivals: Controls that never read the text and would get the same certificate, in words.
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


@dataclass(frozen=True)
class DepthAccuracy:
    """Accuracy by depth, and by number of labels.

    Attributes:
        by_depth: Pairs per depth: accuracy of the model's head, and of a probe by leave-one-out.
        curve: Pairs: number of labels, and leave-one-out accuracy of a probe fitted to them.
    """

    by_depth: tuple[tuple[float, float], ...] = ()
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Advice:
    """The verdict in words.

    Attributes:
        headline: The method to run with its gain and cost, or else the most promising one.
        guarantee: Sentences about the certificate, or about the way to one.
        commands: The commands that use the result, each after a line with its purpose.
        text: All of it with the bars of every contestant, as a terminal shows it.
    """

    headline: str = ""
    guarantee: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Verdict:
    """Verdict of labelled examples on a model, its corrections and probes."""

    table: Examples
    contest: Standings
    certificate: Guarantee
    depths: DepthAccuracy = field(default_factory=DepthAccuracy)
    advice: Advice = field(default_factory=Advice)

    def __str__(self) -> str:
        """Return the whole text of the verdict."""
        return self.advice.text

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `verdict.json`, as plain JSON values."""
        values = asdict(self)
        del values["advice"]["text"]
        values["contest"] |= {"macro": self.contest.macro, "useless": self.contest.useless}
        return {"schema": SCHEMA, **values}
