"""Contest: the answers of every method that is fitted to labels, and the choice of the best.

The accuracies that are compared are cross-fitted: each text is answered by a fit to other groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from lastword.probes.probe import Fit, Probe
from lastword.trust.automation import Rung, curve
from lastword.trust.evidence import as_good
from lastword.tryout.material import Material, Which

WORDS, LARGEST = "bag of words", "largest class"
SIMPLE = (LARGEST, WORDS)  # baselines that a verdict may recommend in place of a probe
UNREAD = "fitted without the text"
PROBE, STACKED = "probe", "probe+model"  # kinds: of the model's states, and over its scores
HALF = 0.5  # standard errors below the best at which a cheaper method is as good

Places = Int[np.ndarray, " _some"]
Table = Float[np.ndarray, "_texts _options"]  # probabilities; 0 for options that a text lacks


@dataclass(frozen=True, eq=False)
class Candidate:
    """A probe, with its leave-one-out answers to the texts that it was fitted to.

    Attributes:
        among: True for these texts [texts].
        judged: Places of those that leave-one-out can judge.
        scores: Leave-one-out probabilities of these [judged, options].
        threshold: Lead over the model's answer that it needs; None if it always answers.
        right: Leave-one-out accuracy by layer and pooling, if it reads one source.
        asks: Share of the texts for which the model's answer is needed too.
    """

    fit: Fit
    among: Which
    judged: Places = field(default_factory=lambda: np.empty(0, dtype=int))
    scores: Table = field(default_factory=lambda: np.empty((0, 0)))
    threshold: float | None = None
    right: Float[np.ndarray, "depths poolings"] | None = None
    asks: float = 0.0


@dataclass(frozen=True, eq=False)
class Contest:
    """Results of probes and their baselines on the same labels.

    Attributes:
        crossed: Cross-fitted probabilities of probes and baselines by kind, the cheapest probe
            first [texts, options].
        kind: The kind that the fit half of the labels chooses.
        chosen, probe: The probe of this kind, fitted to that half.
        shown: Its probabilities for all texts; meaningless for those that it was fitted to.
        names: The name of each kind's probe that is fitted to all labels.
        refit: Function that fits a kind of probe to all labels; cached.
        costs: Compute of an answer by kind of probe, relative to the model's; None if unknown.
        likeness: Conformal p-values of the texts that test it; empty if it reads no state.
        by_depth: Leave-one-out accuracy of a probe per layer of the model [depths]; may be empty.
    """

    material: Material
    crossed: dict[str, Table]
    kind: str
    chosen: Candidate
    probe: Probe
    shown: Table
    names: Mapping[str, str]
    refit: Callable[[str], Probe]
    costs: Mapping[str, float | None] = field(default_factory=dict)
    likeness: tuple[float, ...] = ()
    by_depth: Float[np.ndarray, " depths"] = field(default_factory=lambda: np.empty(0))

    @property
    def tested(self) -> Which:
        """True for the texts that test the probe [texts]."""
        return ~self.chosen.among

    @property
    def kinds(self) -> list[str]:
        """The kinds of probes, the cheapest first."""
        return [kind for kind in self.crossed if kind not in (*SIMPLE, UNREAD)]

    def steps(self, table: Table, among: Places) -> list[Rung]:
        """Return share against error of answers with these probabilities, to some texts."""
        wrong = ~right_of(self.material, table, among)
        return curve(table.max(axis=1), wrong, self.material.groups[among])

    @property
    def best(self) -> str:
        """The kind of probe to use, by cross-validation on all labels."""
        right = {kind: right_of(self.material, self.crossed[kind]) for kind in self.kinds}
        worths = {kind: one * self.material.worths for kind, one in right.items()}
        return best_of(worths, self.material.groups, cheap=self.material.job.prefer == "cheap")


def answers_of(material: Material, table: Table, places: Places | None = None) -> np.ndarray:
    """Return the most probable option of each text [texts]; `places` are those of the texts."""
    options = [material.options[i] for i in (range(len(table)) if places is None else places)]
    pairs = zip(options, table.argmax(axis=1).tolist(), strict=True)
    return np.array([names[place] for names, place in pairs])


def right_of(material: Material, table: Table, places: Places | None = None) -> np.ndarray:
    """Return True where the most probable option is the right one [texts]."""
    truths = material.truths if places is None else material.truths[places]
    return np.asarray(answers_of(material, table, places) == truths)


def best_of(worths: Mapping[str, np.ndarray], groups: np.ndarray, *, cheap: bool) -> str:
    """Return the most accurate method, or the first one that is as good if `cheap`.

    `worths` are those of each answer by method, the cheapest method first [texts].
    """
    best = max(worths, key=lambda name: float(worths[name].mean()))
    return (cheaper(worths, best, groups) if cheap else None) or best


def cheaper(worths: Mapping[str, np.ndarray], best: str, groups: np.ndarray) -> str | None:
    """Return the first method before the best one that is within half a standard error of it."""
    before = [*worths][: [*worths].index(best)]
    return next((n for n in before if as_good(worths[n], worths[best], groups, HALF)), None)
