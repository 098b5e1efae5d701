"""Verdict of a trial, in five parts, which are the objects of `verdict.json`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lastword.trust.automation import Estimate
from lastword.trust.terms import Terms
from lastword.tryout.contest import SIMPLE
from lastword.tryout.material import ACCURACY

FILE, SCHEMA = "verdict.json", 3
MODEL = "the model"


@dataclass(frozen=True)
class Standing:
    """The results of one contestant on the labelled items. Shares lie in [0, 1].

    Attributes:
        right: Accuracy; a tie counts as the share of right answers among the tied ones.
        low, high: The exact 95% interval.
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
    """One label: its recall, and the answers about it that are given.

    Attributes:
        model: Recall of the model; None without a model.
        corrected: Recall of the best contestant.
        share: Share of its rows that the best contestant answers at the threshold.
        error: Share of wrong answers among these; None if there are none.
    """

    label: str
    items: int
    model: float | None
    corrected: float
    share: float = 1.0
    error: float | None = None


@dataclass(frozen=True)
class RowAnswer:
    """The answers to one row: the right one, the model's if it has one, and the best contestant's.

    Attributes:
        confidence: The probability of the best contestant's answer.
    """

    id: str
    truth: str
    model: str | None
    shown: str
    confidence: float


@dataclass(frozen=True)
class Standings:
    """The contest.

    Attributes:
        lines: Chance, the model without the text, the model, each correction, probes, baselines.
        best: The certified contestant, or else the correction or probe that is best by the
            objective. `classes` and `answers` are about it.
        cheaper: A cheaper contestant within half a standard error of `best`; None if there is none.
        saves: Share of the compute of an answer that it saves.
        probe: The name of the best or certified probe; None if there is none.
        cost: Compute of an answer by `best`, relative to the model's; None if unknown.
        classes: Results by label; empty if options differ by row.
        answers: The answers to each row by `best`, limited by the certificate; those of a probe
            are cross-validated.
        prompts: The model with other prompts, on rows that are not examples. `fixed` and `broken`
            compare with its current prompt on the same rows.
        prompts_left_out: Prompts that were not tested, with the reason.
        shown: Contestants that are always shown: the best of each kind, and all with an encoder
            that the user named.
        objective: `accuracy` or `balanced` (mean recall); contestants are ranked by it.
        constant: The answer of the constant baseline; None if options differ by row.
    """

    lines: tuple[Standing, ...]
    best: str
    cheaper: str | None = None
    saves: float = 0.0
    probe: str | None = None
    cost: float | None = None
    classes: tuple[Class, ...] = ()
    answers: tuple[RowAnswer, ...] = ()
    prompts: tuple[Standing, ...] = ()
    prompts_left_out: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    objective: str = ACCURACY
    constant: str | None = None

    def line(self, name: str) -> Standing:
        """Return the line with this name."""
        return next(line for line in self.lines if line.name == name)

    @property
    def model(self) -> Standing | None:
        """The uncorrected model; None without one."""
        return next((line for line in self.lines if line.name == MODEL), None)

    def value(self, line: Standing) -> float:
        """Return the figure that a line is ranked by: accuracy or mean recall."""
        return line.right if line.worth is None else line.worth

    @property
    def simple(self) -> Standing | None:
        """The better baseline without a model; None if none was fitted."""
        baselines = [line for line in self.lines if line.name in SIMPLE]
        return max(baselines, key=self.value, default=None)  # the first on ties

    @property
    def better_prompt(self) -> Standing | None:
        """The prompt with which the model is significantly more accurate, or None."""
        gains = [one for one in self.prompts if (one.fixed or 0) > (one.broken or 0)]
        # Bonferroni's correction over all prompts.
        proven = [one for one in gains if (one.p or 0.0) * len(self.prompts) < 0.05]
        return max(proven, key=lambda one: one.right, default=None)


@dataclass(frozen=True)
class Guarantee:
    """The certificate.

    Attributes:
        terms: The promise.
        method: The certified method; None if nothing is certified, like the next four.
        policy: The overrides that the certificate allows, in words.
        line: Accuracy under the certificate; a probe's is cross-validated.
        tested: Accuracy on the labels that tested the method.
        net_at_least: Lower bound of the gain in accuracy.
        rivals: Controls that never read the text and would get the same certificate, in words.
    """

    terms: Terms
    method: str | None = None
    policy: str | None = None
    line: Standing | None = None
    tested: Standing | None = None
    net_at_least: float | None = None
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShareAnswered:
    """The shares of texts that are answered at some errors; other texts go to a person.

    Attributes:
        estimates: The share that `best` answers at 5, 10 and 20% error, by cross-validation.
        curves: Pairs of share and error by contestant, by cross-validation.
        error: The error that was asked for; None if no promise was.
        share: The share that is proven to be answered at this error; None if none is.
        threshold: The minimum confidence of these answers.
        proven: Pairs of share and error of the thresholds that passed, on the labels that test.
        tested: Number of labels that tested.
        needed: Number of further labels that would probably prove the promise; None if unknown.
    """

    estimates: tuple[Estimate, ...] = ()
    curves: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    error: float | None = None
    share: float | None = None
    threshold: float | None = None
    proven: tuple[tuple[float, float], ...] = ()
    tested: int = 0
    needed: int | None = None


@dataclass(frozen=True)
class Advice:
    """The verdict in words.

    Attributes:
        headline: One line of at most 12 words: what is answered at which error, or what to use.
        shares: Lines about the share that is answered at 5, 10 and 20% error.
        guarantee: Sentences about the certificate, or about the way to one.
        commands: The commands that use the result, each after a line with its purpose.
    """

    headline: str = ""
    shares: tuple[str, ...] = ()
    guarantee: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """Verdict of labelled examples on a model, its corrections and probes.

    Attributes:
        model: The language model's name; None without one.
        items: Number of labelled rows.
        by_depth: Pairs per depth: accuracy of the model's head, and of a probe by leave-one-out.
        notes: Guesses and warnings about the table.
    """

    model: str | None
    items: int
    contest: Standings
    certificate: Guarantee
    answered: ShareAnswered = field(default_factory=ShareAnswered)
    by_depth: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()
    advice: Advice = field(default_factory=Advice)

    def __str__(self) -> str:
        """Return the text of the verdict, without its bars."""
        advice = self.advice
        parts = (advice.headline,), advice.shares, advice.guarantee, advice.commands
        return "\n".join(line for part in parts for line in part)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `verdict.json`, as plain JSON values."""
        return {"schema": SCHEMA, **asdict(self)}
