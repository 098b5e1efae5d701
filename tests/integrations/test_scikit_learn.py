"""ProbeClassifier follows the rules of scikit-learn, and folds read no text twice."""

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn.utils.estimator_checks as checks
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from small_encoders import write_encoder
from topics import LABELS, TEXTS

from lastword import Choice, Decider, Probe, ProbeClassifier, Tracer
from lastword.decide import states
from lastword.decide.questions_file import read_questions, write_questions
from lastword.errors import InputError
from lastword.integrations import scikit_learn
from lastword.model.encoder import Encoder

NEW = ["a horse eats hay", "the price of bread", "zzzz qqqq 0000"]


@pytest.fixture(scope="module")
def tracer():
    return Tracer.demo()


@pytest.fixture
def passes(tracer, monkeypatch):
    """The sequences that the model has read."""
    read, pooled = [], tracer.backbone.pooled

    def counted(branches, *more):
        read.extend(branches)
        return pooled(branches, *more)

    monkeypatch.setattr(tracer.backbone, "pooled", counted)
    scikit_learn._STATES.pop(tracer, None)
    return read


# Two other checks set parameters to values of any type, which the type checks of the tests refuse.
APPLY = [
    checks.check_estimator_cloneable,
    checks.check_estimator_tags_renamed,
    checks.check_valid_tag_types,
    checks.check_estimator_repr,
    checks.check_no_attributes_set_in_init,
    checks.check_mixin_order,
    checks.check_get_params_invariance,
]


@pytest.mark.parametrize("check", APPLY, ids=lambda check: check.__name__)
def test_it_passes_the_checks_of_scikit_learn(check, tracer):
    check("ProbeClassifier", ProbeClassifier(tracer))


@pytest.mark.parametrize(
    "labels",
    [LABELS, [label == "money" for label in LABELS], [9, 10, 9, 10, 100, 100, 9, 10]],
    ids=["texts", "booleans", "integers"],
)
def test_predictions_have_the_type_of_the_labels(tracer, labels):
    classifier = ProbeClassifier(tracer).fit(np.array(TEXTS), labels)
    assert classifier.classes_.tolist() == sorted(set(labels))
    p, scores = classifier.predict_proba(TEXTS), classifier.decision_function(TEXTS)
    assert_allclose(p.sum(axis=1), 1)
    answers = classifier.predict(TEXTS)
    assert answers.dtype == classifier.classes_.dtype
    assert answers.tolist() == classifier.classes_[p.argmax(axis=1)].tolist()
    best = (scores > 0).astype(int) if len(classifier.classes_) == 2 else scores.argmax(axis=1)
    assert answers.tolist() == classifier.classes_[best].tolist()
    assert classifier.score(TEXTS, labels) == (answers == np.array(labels)).mean()
    if classifier.classes_.dtype.kind == "i":  # Int64 of pandas becomes float
        floats = ProbeClassifier(tracer).fit(TEXTS, [float(label) for label in labels])
        assert floats.probe_.question == classifier.probe_.question
        assert floats.predict(TEXTS).tolist() == answers.tolist()


@pytest.mark.parametrize("source", ["model", "encoder"])
def test_a_decider_with_its_file_gives_the_same_answers(tracer, tmp_path, source):
    encoder = Encoder(write_encoder(tmp_path / "letters"), "cpu")
    classifier = ProbeClassifier({"model": tracer, "encoder": encoder}[source], "Of what?")
    classifier.fit(TEXTS, LABELS).probe_.write(path := tmp_path / "a.probe.safetensors")
    decider = Decider(tracer, probes=[path], encoders=[encoder])
    question = {"q": Choice("Of what?", ["money", "animal"])}
    answers = [each["q"] for each in decider.decide_many(NEW, question)]
    assert {each.method for each in answers} == {classifier.probe_.name}
    p = [each.probabilities[::-1] for each in answers]
    assert_allclose(p, classifier.predict_proba(NEW), atol=1e-6)
    assert_allclose([each.likeness for each in answers], classifier.likeness(NEW))


@pytest.mark.parametrize(
    "names", [("animal", "money"), (True, False), (10, 2), ("10", "2"), ("é", "E")], ids=str
)
def test_classes_keep_type_and_order_in_files(tracer, tmp_path, names):
    labels = [names[label == "money"] for label in LABELS]
    classifier = ProbeClassifier(tracer, "What is it about?").fit(TEXTS, labels)
    classifier.probe_.save_pretrained(tmp_path)
    probe = Probe.from_pretrained(tmp_path)
    again = ProbeClassifier.from_probe(probe, tracer)
    assert again.classes_.tolist() == classifier.classes_.tolist() == sorted(names)
    assert_allclose(again.predict_proba(NEW), classifier.predict_proba(NEW))
    write_questions(tmp_path / "q.yaml", {"q": probe.question})
    answers = Decider(tracer, probes=[probe]).decide(NEW[0], read_questions(tmp_path / "q.yaml"))
    value = answers["q"].choice
    assert value == classifier.predict(NEW)[0] and type(value) is type(names[0])
    (entry, *_) = answers.to_dict()["q"]["probabilities"]
    assert entry["value"] == sorted(names)[0] and type(entry["value"]) is type(names[0])
    with pytest.raises(InputError, match="model"):
        ProbeClassifier.from_probe(probe, Tracer.demo("control"))


def test_cross_validation_and_grid_search_read_no_text_twice(tracer, passes):
    classifier = make_pipeline(FunctionTransformer(), ProbeClassifier(tracer, "What is it about?"))
    right = cross_val_score(classifier, np.array(TEXTS), LABELS, cv=2)
    grid = {"probeclassifier__poolings": [("mean",), ("last",)]}
    search = GridSearchCV(classifier, grid, cv=2).fit(np.array(TEXTS), LABELS)
    assert len(passes) == 2 * len(TEXTS)  # each text and its prompt
    answers = cross_val_predict(classifier, np.array(TEXTS), LABELS, cv=2)
    assert len(passes) == 2 * len(TEXTS)
    assert right.mean() == (answers == np.array(LABELS)).mean()
    assert search.best_estimator_[1].probe_.fit.blocks[0].pooling in ("mean", "last")


def test_the_oldest_states_are_dropped(tracer, passes, monkeypatch):
    one = 4 * (tracer.profile.depth + 1) * tracer.profile.width
    monkeypatch.setattr(states, "MOST_BYTES", 4 * one)
    classifier = ProbeClassifier(tracer, poolings=("mean",)).fit(TEXTS, LABELS)
    classifier.predict(TEXTS[-4:])
    assert len(passes) == len(TEXTS) and len(scikit_learn._STATES[tracer]) == 4
    classifier.predict(TEXTS[:1])
    assert len(passes) == len(TEXTS) + 1


def test_clones_share_the_model_and_a_name_is_opened_once_and_pickled_without_it(
    tracer, monkeypatch
):
    opened: list[Any] = []

    def opening(options: Any) -> Tracer:
        opened.append(options)
        return tracer

    monkeypatch.setattr(Tracer, "from_pretrained", opening)
    scikit_learn._opened.cache_clear()
    assert clone(ProbeClassifier(tracer)).model is tracer
    classifier = ProbeClassifier("lastword/demo-organism").fit(TEXTS, LABELS)
    cross_val_score(classifier, TEXTS, LABELS, cv=2)
    raw = pickle.dumps(classifier)
    assert len(raw) < 2**20 and opened == ["lastword/demo-organism"]
    assert_allclose(pickle.loads(raw).predict_proba(NEW), classifier.predict_proba(NEW))
    scikit_learn._opened.cache_clear()


def test_invalid_data_is_refused_in_one_line_and_not_read(tracer, passes):
    classifier = ProbeClassifier(tracer)
    with pytest.raises(InputError, match="needs a class with two labels"):
        classifier.fit(TEXTS[:3], ["cat", "dog", "bird"])
    wrong = [(TEXTS, LABELS[1:]), (TEXTS, ["one"] * len(TEXTS)), ("text", LABELS[:4])]
    for texts, labels in [*wrong, (np.array([TEXTS]).T, LABELS)]:
        with pytest.raises(InputError) as refusal:
            classifier.fit(texts, labels)
        assert "\n" not in str(refusal.value)
    for poolings in ("mean", ("max",)):
        with pytest.raises(InputError, match="poolings are a list of mean and last, not"):
            ProbeClassifier(tracer, poolings=poolings).fit(TEXTS, LABELS)
    for method in ("predict", "predict_proba", "decision_function", "likeness"):
        with pytest.raises(NotFittedError):
            getattr(classifier, method)(TEXTS)
    assert not passes
