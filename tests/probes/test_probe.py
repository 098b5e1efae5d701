"""A probe bound to its question: its file, and its answers in `decide`."""

from dataclasses import replace

import hub_server
import numpy as np
import pytest
from huggingface_hub import ModelCard
from scipy.special import softmax
from topics import LABELS, NAME, QUESTION, TEMPLATE, TEXTS, probe_of, with_facts

from lastword import Decider, Probe, Tracer
from lastword.decide.item import candidates_of, item_of
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.errors import CheckpointError, InputError, ItemError
from lastword.methods import resolve
from lastword.probes.novelty import Likeness
from lastword.probes.threshold import THRESHOLDS, choose_threshold, needs_no_model
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
    ours = Decider.demo(probes=[probe], novelty=1.0)
    runs = []
    for i, block in enumerate(ours.tracer.backbone.parts.blocks):
        block.register_forward_hook(lambda *_, i=i: runs.append(i))
    answer = ours.decide("zzzz qqqq 0000", {"topic": QUESTION})["topic"]
    assert answer.deferred and answer.likeness < 1
    assert max(runs, default=-1) < max(probe.linear.blocks[0].layer, 1)
    as_like = Decider.demo(probes=[probe], novelty=answer.likeness)
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
            Decider.demo(probes=[small], novelty=0.01)


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


def test_the_model_runs_and_answers_only_if_the_probe_is_unsure(probe, monkeypatch):
    tracer = Tracer.demo()
    states = read_states(tracer, TEXTS, QUESTION, TEMPLATE, ("mean",))
    fit = probe.linear
    scores = fit.scores(states[:, fit.blocks[0].layer, 0].astype(np.float64))
    threshold = float(np.median(margins := np.abs(scores[:, 1] - scores[:, 0])))
    selective = Probe.from_bytes(replace(probe, threshold=threshold).to_bytes())
    assert selective.threshold == threshold and selective.digest != probe.digest
    questions, prompts = {"q": QUESTION}, list[str]()
    choices = [a["q"].choice for a in Decider(tracer).decide_many(TEXTS, questions)]
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


@pytest.fixture
def hub(tmp_path, monkeypatch):
    (tmp_path / "served").mkdir()
    with hub_server.instead(tmp_path / "served", tmp_path, monkeypatch) as server:
        yield server


def test_a_saved_probe_has_a_card_and_is_downloaded(probe, hub, tmp_path):
    for folder in (tmp_path, "org/model"):
        with pytest.raises((CheckpointError, InputError), match=r"No such file|has no file probe"):
            Probe.from_pretrained(folder)
    with pytest.raises(CheckpointError, match="org/model has no revision none"):
        Probe.from_pretrained("org/model", revision="none")
    probe.save_pretrained(tmp_path / "served")
    assert Probe.from_pretrained(tmp_path / "served").digest == probe.digest
    for revision in (None, hub_server.COMMIT):
        assert Probe.from_pretrained("org/model", revision=revision).digest == probe.digest
    card = ModelCard.load(tmp_path / "served" / "README.md")
    assert card.data.library_name == "lastword" and "probe" in card.data.tags
    assert "animal, money" in card.text and "labels: 8" in card.text
