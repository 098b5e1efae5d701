"""Answers of a certified probe: drift watches their likeness, and labels make a new table."""

import numpy as np
import pytest
from served import running

from lastword import Decider, ProbeClassifier, Tracer
from lastword.errors import InputError
from lastword.service.settings import Settings
from lastword.tryout.labels import read_labels

WORDS = {"animal": "fox cat dog bird horse".split(), "money": "bill bank price cost rent".split()}
ASKED = "What is it about?"


def texts_of(count, start=0):
    rng = np.random.default_rng(start)
    labels = [list(WORDS)[i % 2] for i in range(count)]
    return [
        f"note {start + i} on the {rng.choice(WORDS[own])} today" for i, own in enumerate(labels)
    ], labels


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    own = ProbeClassifier(Tracer.demo(), ASKED, promise="gain").fit(*texts_of(80))
    (folder / "certificate.toml").write_text(own.certificate_.to_toml(), encoding="utf-8")
    own.probe_.write(folder / "a.probe.safetensors")
    return Decider.demo(
        certificate=folder / "certificate.toml", probes=[folder / "a.probe.safetensors"]
    )


def ask(served, text, **more):
    choices = [{"value": name} for name in WORDS]
    question = {"type": "choice", "name": "topic", "instructions": ASKED, "choices": choices}
    body = {"model": served.service.name, "input": text, "questions": [question]} | more
    (answer,) = served.client.post("/v1/decisions", json=body).json()["answers"]
    return answer


def test_beside_its_question_the_model_answers_and_is_named(model):
    """A certificate of a probe lets no correction through, and decides nothing else."""
    assert model.method == "base"
    with running(model) as served:
        own = ask(served, "a fox at the bank")["lastword"]
        other = [{"type": "choice", "instructions": "Of what?", "choices": ["fox", "bank"]}]
        unlike = ask(served, "a fox at the bank", questions=other)["lastword"]
        (listed,) = served.client.get("/v1/models").json()["models"]
    assert own["method"] == own["operator"] == model.probes[0].name
    assert unlike["method"] == "model" and not unlike["corrected"]
    assert listed["correction"] == "model" and [*listed["questions"]] == ["a"]


def test_labels_come_back_as_a_table_that_try_takes(model, tmp_path, run):
    state, table = tmp_path / "state.db", tmp_path / "more.csv"
    texts, labels = texts_of(6, start=200)
    with running(model, state=state, keep_texts=True) as served:
        for text, label in zip(texts, labels, strict=True):
            answer = ask(served, text)
            assert 0 < answer["lastword"]["likeness"] <= 1
            body = {"id": answer["lastword"]["feedback_id"], "right": list(WORDS).index(label)}
            told = served.client.post("/v1/feedback", json=body).json()
            assert not told["counts"] and told["labelled"] == 0  # nobody knows what the model says
        both = {"id": ask(served, "a fox at the bank")["lastword"]["feedback_id"], "right": [0, 1]}
        assert served.client.post("/v1/feedback", json=both).status_code == 200
        assert "likeness" in served.service.oversight.drift.tests
        assert served.metric("lastword_drift_log_wealth", statistic="likeness") != 0
    code, out, err = run("labels", state, "--out", table)
    assert code == 0 and "6" in out and "1" in err
    read = read_labels(table)
    assert [row[0] for row in read.rows] == texts
    assert [row[2] for row in read.rows] == labels
    assert [option.text for option in read.question.options] == list(WORDS)
    assert read.question.instructions == ASKED


def test_without_keep_texts_no_text_is_in_the_file(model, tmp_path, run):
    state = tmp_path / "state.db"
    with running(model, state=state) as served:
        answer = ask(served, "a secret about a fox")
        body = {"id": answer["lastword"]["feedback_id"], "right": 0}
        assert served.client.post("/v1/feedback", json=body).status_code == 200
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    code, _, err = run("labels", state, "--out", tmp_path / "more.csv")
    assert code == 1 and "--keep-texts" in err
    assert run("labels", tmp_path / "none.db", "--out", tmp_path / "more.csv")[0] == 1
    with pytest.raises(InputError, match="--state"):
        Settings(keep_texts=True)


def test_drift_is_seen_where_texts_are_unlike_the_labels(model):
    with running(model) as served:
        oversight = served.service.oversight
        for text in texts_of(40, start=300)[0]:
            ask(served, text)
        assert not oversight.drift.warned
        for i in range(60):
            ask(served, f"{i} 0x{i:04x} zzzz qqqq {'#' * 20} select * from t where {i}")
        assert oversight.drift.warned == {"likeness"}
        assert [event["statistic"] for event in served.events("drift")] == ["likeness"]
