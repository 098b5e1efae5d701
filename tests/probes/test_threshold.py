"""The threshold of a probe: its choice, and the answers of `Decider` with it."""

from dataclasses import replace

import numpy as np
import pytest
from topics import QUESTION, TEMPLATE, TEXTS, probe_of

from lastword import Decider, Tracer
from lastword.decide.item import candidates_of
from lastword.decide.states import read_states
from lastword.probes.probe import Probe
from lastword.probes.threshold import THRESHOLDS, choose_threshold, needs_no_model


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_is_the_best_by_definition(seed):
    random = np.random.default_rng(seed)
    scores = random.normal(scale=0.5, size=(40, 3))
    base, truths = random.integers(3, size=(2, 40))
    # Accuracy, whose gains sum to F - K and their squares to F + K; and weighted classes.
    worth = np.ones(3) if seed % 2 else random.random(3)
    values = {}
    for threshold in THRESHOLDS:
        gains = []
        for row, first, truth in zip(scores, base, truths, strict=True):
            shown = int(row.argmax()) if row.max() > row[first] + threshold else first
            gains.append(worth[truth] * (int(shown == truth) - int(first == truth)))
        values[threshold] = sum(gains) / (sum(g**2 for g in gains) + max(worth) ** 2) ** 0.5
    best = max(values.values())
    chosen = choose_threshold(scores, base, truths, worth)
    assert chosen == max(t for t, value in values.items() if value == pytest.approx(best))
    assert choose_threshold(scores, base, truths, 7 * worth) == chosen  # in any unit
    assert seed % 2 == 0 or choose_threshold(scores, base, truths) == chosen


def test_leads_by_hand():
    # The last row's lead is the threshold: it stands for nothing.
    scores = np.array([[0.0, 1.0, -1.0]] * 6 + [[0.0, 0.5, -1.0]])
    assert needs_no_model(scores, 0.5).tolist() == [True] * 6 + [False]


def test_the_model_runs_and_answers_only_if_the_probe_is_unsure(monkeypatch):
    tracer = Tracer.demo()
    states = read_states(tracer, TEXTS, QUESTION, TEMPLATE, ("mean",))
    fit = (probe := probe_of(tracer)).linear
    scores = fit.scores(states[:, fit.blocks[0].layer, 0].astype(np.float64))
    margins = np.abs(scores[:, 1] - scores[:, 0])
    threshold = float(np.median(margins))
    selective = Probe.from_bytes(replace(probe, threshold=threshold).to_bytes())
    assert selective.threshold == threshold and selective.digest != probe.digest
    questions = {"q": QUESTION}
    choices = [a["q"].choice for a in Decider(tracer).decide_many(TEXTS, questions)]
    prompts: list[str] = []
    correct = tracer.correct_encoded

    def counted(encoded, scope=None):
        prompts.extend(one.item.prompt for one in encoded)
        return correct(encoded, scope)

    monkeypatch.setattr(tracer, "correct_encoded", counted)
    decider = Decider(tracer, probes=[selective])
    answers = [a["q"] for a in decider.decide_many(TEXTS, questions)]
    unsure = margins <= threshold
    assert len(prompts) == unsure.sum() == len(TEXTS) / 2
    for row, model, answer, open_ in zip(scores, choices, answers, unsure, strict=True):
        best = candidates_of(QUESTION)[int(row.argmax())]
        assert answer.choice == (model if open_ else best)
        assert answer.to_dict()["by"] == ("model" if open_ and best != model else "probe")
    # If every depth is requested, the model runs for all texts, with the same answers.
    works = [decider.plan(text, decider.prepare(questions), "all")[0] for text in TEXTS]
    again = decider.answer(works)
    assert [a.choice for a in again] == [a.choice for a in answers]
    changed = [a.choice != m for a, m in zip(again, choices, strict=True)]
    assert [a.corrected for a in again] == changed
    assert "by" not in Decider(tracer, probes=[probe]).decide(TEXTS[0], questions)["q"].to_dict()
