"""A probe bound to its question: its file, and its answers in `decide`."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from topics import LABELS, NAME, QUESTION, TEMPLATE, TEXTS, probe_of, with_facts

from lastword import Decider, Tracer
from lastword.decide.item import item_of
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.errors import InputError, ItemError
from lastword.methods import resolve
from lastword.probes.novelty import Likeness
from lastword.probes.probe import Probe
from lastword.probes.trajectory import TrajectoryProbe, features_of, fit_trajectory
from lastword.text.question import Choice, Predicate


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


@pytest.fixture(scope="module")
def probe(tracer):
    return probe_of(tracer)


def test_states_agree_with_the_model(tracer):
    import torch

    states = read_states(tracer, TEXTS[:2], QUESTION, TEMPLATE, ("mean", "last"))
    model, tokenizer = tracer.backbone.model, tracer.tokenizer
    for row, text in enumerate(TEXTS[:2]):
        lead = tokenizer(f"Text: {text}")["input_ids"]
        start = len(tokenizer("Text:")["input_ids"])
        whole = tokenizer(f"Text: {text}\nQuestion: {QUESTION.instructions}\nAnswer:")["input_ids"]
        for place, (ids, some) in enumerate([(lead, slice(start, None)), (whole, slice(-1, None))]):
            with torch.no_grad():
                hidden = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
            for depth in (0, 3):
                expected = hidden[depth][0, some].mean(dim=0)
                np.testing.assert_allclose(states[row, depth, place], expected, atol=2e-5)


def test_a_written_probe_is_read_back_and_a_changed_one_refused(tmp_path, probe):
    probe.write(tmp_path / "a.probe.safetensors")
    again = Probe.read(tmp_path / "a.probe.safetensors")
    assert again.digest == probe.digest == Probe.from_bytes(with_facts(probe.to_bytes())).digest
    assert (again.question, again.labels) == (QUESTION, len(LABELS))
    raw = probe.to_bytes()
    turned = with_facts(raw, **{"fit.classes": ["money", "animal"]}, digest="")
    for changed in (turned, raw[:-1] + bytes([raw[-1] ^ 1]), with_facts(raw, digest=None)):
        with pytest.raises(InputError, match="not those of its digest"):
            Probe.from_bytes(changed)


def damages(raw: bytes):
    nan = with_facts(raw[:-8] + np.float64(np.nan).tobytes())
    yield from (b"", raw[:40], raw[:-4], b"PK\x03\x04" + raw, nan)
    yield from (with_facts(raw, schema=schema) for schema in ("2", None))
    classes = (None, ["animal", "animal"], ["animal", "music"], ["animal"])
    wrong = {
        "fit.classes": classes,
        "fit.temperature": [0, "1"],
        "fit.blocks": [[{"layer": layer, "pooling": "mean"}] for layer in (-1, "3")],
        "fit.weights": ["array9", 0],
        "fit.kind": ["trajectory", "forest"],
        "fit.likeness.floor": [0],
        "question": [{"type": "choice"}],
        "subject": [None],
        "threshold": [True, "1", -1],
        "left_out": ["animal"],
        "labels": [0],
        "seed": [-1, 1.5],
        "other": [1],
    }
    for name, values in wrong.items():
        yield from (with_facts(raw, **{name: value}) for value in values)


def test_every_damaged_file_is_refused(tmp_path, probe):
    path = tmp_path / "bad.probe.safetensors"
    for raw in damages(probe.to_bytes()):
        path.write_bytes(raw)
        with pytest.raises(InputError) as refusal:
            Probe.read(path)
        assert "\n" not in str(refusal.value)
    with pytest.raises(InputError):
        Probe.read(tmp_path / "none")


def test_a_probe_answers_only_its_question(tracer, probe):
    ours = Decider.demo(probes=[probe])
    questions = {
        "turned": Choice("What is it about?", ["money", "animal"]),
        "other": Choice("Is it about this?", ["money", "animal"]),
        "more": Choice("What is it about?", ["money", "animal", "music"]),
        "holds": Predicate("It is about money."),
    }
    with pytest.warns(UserWarning, match="almost the served question"):
        answers = ours.decide("a horse eats hay", questions)
    assert [*answers] == [*questions]
    assert answers["turned"].method == probe.name and answers["turned"].calibrated
    without = Decider(tracer).decide("a horse eats hay", questions)
    for name in ("other", "more", "holds"):
        assert answers[name].to_dict() == without[name].to_dict()
    # Other questions do not change an answer by a bit.
    size = Choice("Is it long?", ["animal", "money"])
    both = Decider.demo(probes=[probe, probe_of(tracer, "last", size)])
    together = [*both.decide_many(TEXTS, {"topic": QUESTION, "size": size})]
    for alone, one in zip(ours.decide_many(TEXTS, {"topic": QUESTION}), together, strict=True):
        assert alone["topic"].probabilities.tolist() == one["topic"].probabilities.tolist()
    turned = answers["turned"].to_dict()
    assert 0 < turned["likeness"] <= 1 and not turned["deferred"]
    assert sum(each["probability"] for each in turned["probabilities"]) == pytest.approx(1)


def test_no_layer_above_the_probe_is_computed_and_a_novel_text_is_deferred_on_request(probe):
    ours = Decider.demo(probes=[probe], unlike=1.0)
    runs = []
    for i, block in enumerate(ours.tracer.backbone.parts.blocks):
        block.register_forward_hook(lambda *_, i=i: runs.append(i))
    answer = ours.decide("zzzz qqqq 0000", {"topic": QUESTION})["topic"]
    assert answer.deferred and answer.likeness < 1
    assert max(runs, default=-1) < max(probe.linear.blocks[0].layer, 1)
    as_like = Decider.demo(probes=[probe], unlike=answer.likeness)
    assert not as_like.decide("zzzz qqqq 0000", {"topic": QUESTION})["topic"].deferred


@pytest.mark.parametrize(("labels", "suggested"), [(30, 0.033), (99, 0.011), (198, 0.01)])
def test_a_level_below_every_p_value_is_refused_with_a_suggestion(probe, labels, suggested):
    rng = np.random.default_rng(0)
    width = len(probe.linear.mean)
    likeness = Likeness.of((z := rng.standard_normal((labels, width))) - z.mean(axis=0))
    far = likeness.p_values(np.full((1, width), 1e6))[0]
    assert far == likeness.least_p and far < likeness.level() == suggested
    small = replace(probe, fit=replace(probe.fit, likeness=likeness))
    if far >= 0.01:
        with pytest.raises(InputError, match=f"--novelty {suggested:g}"):
            Decider.demo(probes=[small], unlike=0.01)


def test_another_model_or_template_and_long_texts_are_refused(probe):
    with pytest.raises(InputError, match="demo-mix"):
        Decider.demo("mix", probes=[probe])
    with pytest.raises(InputError, match="prompt template"):
        Decider.demo(probes=[probe]).decide("x", {"q": QUESTION}, template="decide/listed")
    with pytest.raises(ItemError, match="1"):
        [*Decider.demo(probes=[probe]).decide_many(["short", "word " * 5000], {"q": QUESTION})]


def test_a_trajectory_probe_answers_questions_with_other_options(tmp_path, tracer):
    goods = ["clay lamps", "green wool", "salted fish", "pale cedar boats"]
    which = "Which goods come from there?"
    texts = ["Baevwick", "the lake", "the hills", "a village", "the sea", "the wood"]
    questions = [Choice(which, goods[i % 2 : i % 2 + 3]) for i in range(len(texts))]
    pairs = zip(texts, questions, strict=True)
    items = [item_of(*pair, TEMPLATE, blind=True, content_free=True) for pair in pairs]
    free = resolve(["contextual"], tracer.facts)
    read = [*tracer.correct_many(items, "all", free, blind="all")]
    tokens = [encoded.prompt.candidate_tokens for encoded in tracer.encode(items)]
    features = [*map(features_of, read, tokens)]
    fit = fit_trajectory(features, [0, 1, 2, 0, 1, 2])
    path = tmp_path / "t.probe.safetensors"
    Probe(questions[0], NAME, subject_of(tracer), fit, len(texts)).write(path)
    ours = Decider.demo(probes=[path])
    for text, question, x, decision in zip(texts, questions, features, read, strict=True):
        answer = ours.decide(text, {"goods": question})["goods"]
        p = softmax(fit.scores(x) / fit.temperature)
        np.testing.assert_allclose(answer.probabilities, p, atol=1e-5)
        assert answer.method == "probe@trajectory"
        assert answer.corrected == (p.argmax() != decision.base_index)
        assert "likeness" not in answer.to_dict()
    assert ours.decide("x", {"q": Choice("Another?", goods)})["q"].method == "model"
    shallow = TrajectoryProbe(fit.weights[2:], fit.temperature)
    other = Decider.demo(probes=[Probe(questions[0], NAME, subject_of(tracer), shallow, 6)])
    with pytest.raises(InputError, match="fit it again"):
        other.decide("x", {"q": questions[0]})
