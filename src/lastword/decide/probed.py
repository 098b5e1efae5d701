"""Computes answers of probes from the states of a text, or from the scores at every depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.answer import Probed, SingleAnswer, answer_from, by_option
from lastword.decide.item import candidates_of
from lastword.decide.plan import Part
from lastword.decide.tracer import not_finite, sound
from lastword.errors import InputError, NonFiniteError
from lastword.probes.probe import Probe
from lastword.probes.stacked import StackedProbe
from lastword.probes.state import StateProbe
from lastword.probes.threshold import answers_by_itself, needs_no_model, of_options
from lastword.probes.trajectory import TrajectoryProbe, features_of
from lastword.records.decision import Decision

# Probabilities by option text, and True if the most probable option is not the model's answer.
_Shares = tuple[dict[str, float], bool]


@dataclass(frozen=True)
class PooledStates:
    """The pooled states of one text at some depths; `encoded` are those by a sentence encoder."""

    rows: Float[np.ndarray, "depths width"]
    depths: tuple[int, ...]
    encoded: "PooledStates | None" = None

    @property
    def fault(self) -> NonFiniteError | None:
        """The error if a state is not finite, else None."""
        fault = not_finite(self.rows, self.depths)
        return fault if fault is not None or self.encoded is None else self.encoded.fault

    def row(self, state: StateProbe) -> Float[np.ndarray, " width"]:
        """Return the features of a probe: the state at its depth, then the encoder's if any."""
        row: Float[np.ndarray, " width"] = self.rows[self.depths.index(state.depth)]
        if self.encoded is None or state.beside is None:
            return row
        place = self.encoded.depths.index(state.beside)
        return np.concatenate([row, self.encoded.rows[place]])


def state_of(part: Part) -> StateProbe:
    """Return the state probe of a part, which may be inside a stacked probe."""
    assert part.probe is not None and part.probe.state is not None
    return part.probe.state


def is_sure(part: Part, states: PooledStates) -> bool:
    """Return True if the probe's answer stands without computing the model's answer."""
    probe = part.probe
    if probe is None or probe.threshold is None or not isinstance(probe.fit, StateProbe):
        return False
    if states.fault is not None:  # the error is the answer
        return True
    row = states.row(probe.fit)[None].astype(np.float64)
    options = candidates_of(probe.question)
    table = of_options(probe.fit.scores(row), probe.fit.classes, options)
    return bool(needs_no_model(table, probe.threshold)[0])


def from_states(
    probe: Probe,
    places: Sequence[int],
    parts: Sequence[Part],
    decisions: Mapping[int, Decision | NonFiniteError],
    states: Mapping[int, PooledStates],
    unlike: float,
) -> dict[int, SingleAnswer | NonFiniteError]:
    """Return the answers of a state probe or a stacked probe, by index.

    `places` are those of its parts. `decisions` lacks the parts that need no model.
    """
    faults = {i: states[i].fault or decisions.get(i) for i in places}
    answers: dict[int, SingleAnswer | NonFiniteError] = {
        i: fault for i, fault in faults.items() if isinstance(fault, NonFiniteError)
    }
    if not (finite := [i for i in places if i not in answers]):
        return answers
    fit, state = probe.fit, state_of(parts[finite[0]])
    rows = np.stack([states[i].row(state) for i in finite]).astype(np.float64)
    values, options = state.scores(rows), candidates_of(probe.question)
    if isinstance(fit, StackedProbe):
        read = [sound(decisions[i]) for i in finite]
        values = _stacked(fit, values, read)
        shares = [_shares(one, u / fit.temperature) for one, u in zip(read, values, strict=True)]
        table = values / 2  # half of the log odds: thresholds are on the ridge's scale
    else:
        each = state.probabilities(rows).tolist()
        shares = [(dict(zip(state.classes, p, strict=True)), False) for p in each]
        table = of_options(values, state.classes, options)
    likeness = state.likeness_p(rows).tolist()
    for i, (p, corrected), scores, like in zip(finite, shares, table, likeness, strict=True):
        probed = Probed(probe.name, like, like < unlike, corrected)
        if probe.threshold is not None:
            of_model = None if i not in decisions else sound(decisions[i])
            p, probed = _by_threshold(probe.threshold, scores, of_model, p, probed)
        answers[i] = _probe_answer(parts[i], p, probed)
    return answers


def from_depths(
    probe: Probe,
    places: Sequence[int],
    parts: Sequence[Part],
    decisions: Mapping[int, Decision | NonFiniteError],
    every_depth: Sequence[bool],
) -> dict[int, SingleAnswer | NonFiniteError]:
    """Return the answers of a trajectory probe, by index; arguments as in `from_states`."""
    answers: dict[int, SingleAnswer | NonFiniteError] = {}
    fit = probe.fit
    assert isinstance(fit, TrajectoryProbe)
    for i in places:
        decision, item = decisions[i], parts[i].item
        assert item is not None
        if isinstance(decision, NonFiniteError):
            answers[i] = decision
            continue
        p, corrected = _trajectory(fit, decision, item.prompt.candidate_tokens)
        probed = Probed(probe.name, None, corrected=corrected)
        if every_depth[i]:
            probed = replace(probed, candidates=decision.candidates, trajectory=decision.trajectory)
        answers[i] = _probe_answer(parts[i], p, probed)
    return answers


def _probe_answer(part: Part, p: Mapping[str, float], probed: Probed) -> SingleAnswer:
    return answer_from(part.question, by_option(part.question, p), probed, calibrated=True)


def _by_threshold(
    threshold: float,
    scores: Float[np.ndarray, " options"],
    decision: Decision | None,
    p: dict[str, float],
    probed: Probed,
) -> tuple[dict[str, float], Probed]:
    """Return the probe's answer, or the model's if the probe's lead is below the threshold.

    `scores` are on the ridge's scale. `decision` is None if the probe was certain without it.
    """
    if decision is None:
        return p, replace(probed, by="probe")
    base, best = decision.base_index, int(scores.argmax())
    probed = replace(probed, model=decision.candidates[base])
    if best == base or answers_by_itself(scores[None], np.array([base]), threshold)[0]:
        return p, replace(probed, by="probe", corrected=best != base)
    shares = softmax(decision.base_scores).tolist()
    by_text = dict(zip(decision.candidates, shares, strict=True))
    return by_text, replace(probed, by="model", corrected=False)


def _stacked(
    fit: StackedProbe, scores: Float[np.ndarray, "texts classes"], read: Sequence[Decision]
) -> Float[np.ndarray, "texts options"]:
    # All have blind scores, as such a probe's scope includes them.
    base = np.stack([one.base_scores for one in read])
    blind = np.stack([one.blind_scores for one in read if one.blind_scores is not None])
    return fit.scores(scores, read[0].candidates, base, blind)


def _trajectory(fit: TrajectoryProbe, decision: Decision, tokens: Sequence[int]) -> _Shares:
    features = features_of(decision, tokens)
    if features.shape[1] != len(fit.weights):
        raise InputError(
            f"{fit.name} has {len(fit.weights)} weights and an option of this model "
            f"{features.shape[1]} features: fit it again, with this model and this version"
        )
    return _shares(decision, fit.scores(features) / fit.temperature)


def _shares(decision: Decision, scores: Float[np.ndarray, " options"]) -> _Shares:
    p = softmax(scores).tolist()
    best_is_other = int(np.argmax(p)) != decision.base_index
    return dict(zip(decision.candidates, p, strict=True)), best_is_other
