"""The rule on given scores, scores of single tokens, and readouts of one's own."""

from typing import Any

import numpy as np
import pytest
from families import build, random_items, tokenizer
from torch import Tensor

from lastword import Theta, Tracer, decide_trajectory
from lastword.errors import InputError

OPEN = Theta(tau_logr=-2.0, tau_H=0.1, gamma=-5.0)  # random models often pass these gates


def tracer_of(invariant: float = 2.0, **options: Any) -> Tracer:
    return Tracer(build("llama"), tokenizer(), theta=OPEN, invariant=invariant, **options)


@pytest.mark.parametrize("invariant", [0.5, 2.0])
def test_the_rule_on_a_trajectory_decides_as_the_tracer(invariant: float) -> None:
    operators = set()
    for d in tracer_of(invariant).correct_many(random_items(21, 16, candidates=(1, 6)), "all"):
        again = decide_trajectory(d.trajectory, d.t_scores, invariant, OPEN, d.candidates)
        assert (again.answer, again.operator, again.regime) == (d.answer, d.operator, d.regime)
        np.testing.assert_array_equal(again.scores, d.scores)
        assert again.gates == d.gates and again.decisive_layer == d.decisive_layer
        operators.add(d.operator)
    assert len(operators) > 2
    with pytest.raises(InputError, match="the decision needs t, or the scores at the layers"):
        decide_trajectory(np.full((4, 7), np.nan), None, invariant)


def test_the_mean_of_a_candidates_token_scores_is_its_score() -> None:
    tracer = tracer_of()
    for item in random_items(22, 3, candidates=(2, 4)):
        tokens = tracer.token_scores(item.prompt, item.candidates)
        (decision,) = tracer.correct_many([item], "all")
        means = np.stack([table.mean(axis=0) for table in tokens])
        np.testing.assert_allclose(means, decision.trajectory, atol=1e-5)


def test_a_readout_of_ones_own_reads_every_layer_but_has_to_agree_at_the_last() -> None:
    plain, items = tracer_of(), random_items(23, 6)
    head, last = plain.model.readout, plain.profile.depth

    def tuned(hidden: Tensor, layer: int) -> Tensor:  # doubles the logits of layer 2
        return head.logits(hidden) * (2 if layer == 2 else 1)

    lens = tracer_of(readout=tuned)
    pairs = zip(plain.correct_many(items, "all"), lens.correct_many(items, "all"), strict=True)
    for one, other in pairs:
        same = [layer for layer in range(last + 1) if layer != 2]
        np.testing.assert_allclose(other.trajectory[:, same], one.trajectory[:, same], atol=1e-5)
        assert np.abs(other.trajectory[:, 2] - one.trajectory[:, 2]).max() > 1e-3
    assert lens.with_theta(Theta()).lens is tuned
    assert lens.describe()["head_dtype"] != plain.describe()["head_dtype"]
    for wrong, message in (
        (lambda hidden, layer: 2 * head.logits(hidden), "at the last layer the readout has to"),
        (lambda hidden, layer: head.logits(hidden)[:, :-1], "the readout gives logits"),
    ):
        with pytest.raises(InputError, match=message):
            tracer_of(readout=wrong)
