"""A certified probe in the service: drift of the likeness, and stored labels as a table."""

import numpy as np
import pytest
from served import running
from small_encoders import write_encoder
from test_served_questions import choice_of, post
from topics import certificate_of

from lastword import Decider, ProbeClassifier, Tracer
from lastword.errors import InputError
from lastword.model.encoder import Encoder
from lastword.service.settings import Settings
from lastword.trust.drift import sampled
from lastword.tryout.labels import read_labels

WORDS = {"animal": "fox cat dog bird horse".split(), "money": "bill bank price cost rent".split()}
INSTRUCTIONS = "What is it about?"


def texts_of(count, start=0):
    rng = np.random.default_rng(start)
    labels = [list(WORDS)[i % 2] for i in range(count)]
    return [
        f"note {start + i} on the {rng.choice(WORDS[label])} today"
        for i, label in enumerate(labels)
    ], labels


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe")
    texts, labels = texts_of(80)
    fitted = [i for i in range(80) if i % 4 < 2]
    classifier = ProbeClassifier(Tracer.demo(), INSTRUCTIONS)
    classifier.fit([texts[i] for i in fitted], [labels[i] for i in fitted])
    others = [texts[i] for i in range(80) if i not in fitted]
    reference = sampled(classifier.likeness(others).tolist())
    certificate = certificate_of(classifier.probe_, reference=reference)
    (folder / "certificate.toml").write_text(certificate.to_toml(), encoding="utf-8")
    classifier.probe_.write(folder / "a.probe.safetensors")
    return Decider.demo(
        certificate=folder / "certificate.toml", probes=[folder / "a.probe.safetensors"]
    )


def ask(served, text, **more):
    choices = [{"value": name} for name in WORDS]
    question = {"type": "choice", "name": "topic", "instructions": INSTRUCTIONS, "choices": choices}
    body = {"model": served.service.name, "input": text, "questions": [question]} | more
    (answer,) = served.client.post("/v1/decisions", json=body).json()["answers"]
    return answer


def test_stored_labels_are_a_table_that_try_reads(model, tmp_path, run):
    state, table = tmp_path / "state.db", tmp_path / "more.csv"
    texts, labels = texts_of(6, start=200)
    with running(model, state=state, keep_texts=True) as served:
        for text, label in zip(texts, labels, strict=True):
            answer = ask(served, text)
            assert 0 < answer["lastword"]["likeness"] <= 1
            body = {"id": answer["lastword"]["feedback_id"], "right": list(WORDS).index(label)}
            result = served.client.post("/v1/feedback", json=body).json()
            # Without the model's answer, a label does not count.
            assert not result["counts"] and result["labelled"] == 0
        both = {"id": ask(served, "a fox at the bank")["lastword"]["feedback_id"], "right": [0, 1]}
        assert served.client.post("/v1/feedback", json=both).status_code == 200
        assert "likeness" in served.service.oversight.drift.tests
        assert served.metric("lastword_drift_log_wealth", statistic="likeness") != 0
    code, out, err = run("feedback", state, "--out", table)
    assert code == 0 and "6" in out and "1" in err
    read = read_labels(table)
    assert [row[0] for row in read.rows] == texts
    assert [row[2] for row in read.rows] == labels
    assert [option.text for option in read.question.options] == list(WORDS)
    assert read.question.instructions == INSTRUCTIONS


def test_without_keep_texts_the_state_has_no_text(model, tmp_path, run):
    state = tmp_path / "state.db"
    with running(model, state=state) as served:
        answer = ask(served, "a secret about a fox")
        body = {"id": answer["lastword"]["feedback_id"], "right": 0}
        assert served.client.post("/v1/feedback", json=body).status_code == 200
    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    code, _, err = run("feedback", state, "--out", tmp_path / "more.csv")
    assert code == 1 and "--keep-texts" in err
    assert run("feedback", tmp_path / "none.db", "--out", tmp_path / "more.csv")[0] == 1
    with pytest.raises(InputError, match="--state"):
        Settings(keep_texts=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Decider:
    """An encoder's probe with a certificate of its errors, without a language model."""
    encoder = Encoder(write_encoder(tmp_path_factory.mktemp("encoder") / "letters"), "cpu")
    texts, labels = texts_of(80)
    labels[::7] = labels[1::7]  # so that it is not certain of everything
    probe = ProbeClassifier(encoder, INSTRUCTIONS).fit(texts, labels).probe_
    bare = Decider(probes=[probe], encoders=[encoder])
    answers = bare.decide_many(texts_of(40, 400)[0], {"q": probe.question})
    least = float(np.median([one["q"].probability for one in answers]))
    return Decider(probes=[probe], encoders=[encoder], certificate=certificate_of(probe, least))


def test_an_uncertain_answer_is_deferred_in_every_form(alone):
    with running(alone) as served:
        for text in texts_of(6, start=400)[0]:
            expected = alone.decide(text, {"q": alone.probes[0].question})["q"]
            for form in ("openai", "chat", "typesafe", "google"):
                answer = post(served, form, INSTRUCTIONS, [*WORDS], text=text)
                choice, details = choice_of(form, answer)
                assert details["deferred"] == expected.deferred and choice == expected.choice
            for named in ({}, {"question": "answer"}):
                question = {"type": "choice", "instructions": INSTRUCTIONS, "choices": [*WORDS]}
                more = {"questions": [question | named | {"abstain": True}]}
                choice = ask(served, text, **more)["choice"]
                assert choice == (None if expected.deferred else expected.choice)
        deferred = served.metric("lastword_deferred_total")
        decided = served.metric(
            "lastword_decisions_total", regime="probe", operator="probe", changed="no"
        )
        assert 0 < deferred < decided == 36
        share = served.metric("lastword_answered_share")
        assert share == pytest.approx(1 - deferred / decided)
        unread = served.client.post("/v1/correct", json={"prompt": "a", "candidates": ["b", "c"]})
        assert unread.status_code == 422 and "language model" in unread.text


def test_too_many_errors_among_given_answers_raise_the_alarm(alone, tmp_path):
    state = tmp_path / "state.db"
    with running(alone, state=state) as served:
        given = wrong = 0
        for text, truth in zip(*texts_of(120, start=700), strict=True):
            answer = ask(served, text)
            error = answer["choice"] != truth or given >= 20  # then the world has changed
            places = [i for i, name in enumerate(WORDS) if (name == answer["choice"]) != error]
            body = {"id": answer["lastword"]["feedback_id"], "right": places}
            result = served.client.post("/v1/feedback", json=body).json()
            counts = not answer["lastword"]["deferred"]
            given, wrong = given + counts, wrong + (counts and error)
            assert result["counts"] == counts and result["was_wrong"] == error
            assert (result["given"], result["wrong"]) == (given, wrong)
            if result["alarm"]:
                break
        assert result["alarm"] and given < 60
        (event,) = served.events("alarm")
        assert event["of"] == "errors" and event["broken"] == wrong
        assert served.metric("lastword_alarm", of="errors") == 1
        assert served.metric("lastword_alarm", of="breaks") == 0
        before = served.client.get("/v1/model").json()["oversight"]
    with running(alone, state=state) as served:
        assert served.client.get("/v1/model").json()["oversight"] == before
