"""Reranking answers as the library decides, in the forms of TEI, Cohere and Jina."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
from served import Held, Running, running

from lastword import Predicate, Tracer
from lastword.decisions import relevance

BODY = {"query": "w5 w6 w7", "texts": ["w8 w9", "w10", "w11 w12 w13"]}
COHERE = {"query": BODY["query"], "documents": BODY["texts"]}
GOODS = {
    "query": "Which goods come from Baevwick?",
    "texts": ["The folk of Baevwick send clay lamps over the lake.", "Oru has a lake.", "Lamps."],
}
VERSIONS = ["/v1/rerank", "/v2/rerank"]
CONTINUED = [f"/continuation{path}" for path in VERSIONS]


@pytest.fixture(scope="module")
def decision(model):
    return model.correct(BODY["query"], BODY["texts"])


@pytest.fixture(scope="module")
def demo() -> Tracer:
    """A model that knows yes from no."""
    return Tracer.demo()


@pytest.fixture(scope="module")
def reading(demo) -> Iterator[Running]:
    with running(demo) as served:
        yield served


@pytest.fixture(scope="module")
def relevant(demo) -> list[float]:
    """How probable it is that each text answers the query, by the library, each asked alone."""
    told = []
    for text in GOODS["texts"]:
        (own,) = demo.decide(GOODS["query"], relevance([text])).predicates.values()
        told.append(own.probability)
    return told


def ranked(decision) -> list[int]:
    """Places by score, found otherwise than the service finds them."""
    return [int(i) for i in (-decision.scores).argsort(kind="stable")]


# What is asked


def test_each_document_is_asked_behind_the_query_that_all_share():
    one, two = relevance(["w8 w9", "w10"]).items("w5 w6")
    assert one.prompt.startswith("Query: w5 w6\nPassage: w8 w9\n") and one.candidates == (
        "yes",
        "no",
    )
    assert two.prompt.startswith("Query: w5 w6\nPassage: w10\n")
    assert one.blind_prompt == one.prompt.removeprefix("Query: w5 w6\n")
    assert relevance(["w10"]).questions == {"0": Predicate("w10")}


def test_texts_come_by_the_probability_that_they_answer(reading, relevant):
    told = reading.client.post("/rerank", json=GOODS).json()
    order = np.argsort(-np.array(relevant), kind="stable").tolist()
    assert [rank["index"] for rank in told] == order
    assert [rank["score"] for rank in told] == pytest.approx([relevant[i] for i in order], abs=1e-5)
    assert all(rank.keys() == {"index", "score"} for rank in told)
    raw = reading.client.post("/rerank", json=GOODS | {"raw_scores": True}).json()
    odds = [math.log(relevant[i] / (1 - relevant[i])) for i in order]
    assert [rank["score"] for rank in raw] == pytest.approx(odds, abs=1e-4)


@pytest.mark.parametrize("path", VERSIONS)
def test_relevance_does_not_know_of_other_documents(reading, relevant, path):
    texts = [*GOODS["texts"], GOODS["texts"][0], "Clay."]
    told = reading.client.post(path, json={"query": GOODS["query"], "documents": texts}).json()
    own = {result["index"]: result["relevance_score"] for result in told["results"]}
    assert [own[i] for i in (0, 1, 2, 3)] == pytest.approx([*relevant, relevant[0]], abs=1e-5)
    documents = told["lastword"]["documents"]
    assert len(documents) == 5 and {"method", "corrected", "calibrated"} < documents[0].keys()


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (GOODS | {"query": " "}, 422, "the query is blank"),
        (GOODS | {"texts": ["w6", " "]}, 422, "document 1 is blank"),
        (GOODS | {"texts": ["w6"] * 401}, 422, "401 questions, a request takes 400"),
    ],
)
def test_what_cannot_be_asked_is_told(reading, body, status, word):
    answer = reading.client.post("/rerank", json=body)
    assert answer.status_code == status and word in answer.json()["error"]


# As continuations


# TEI's form


def test_texts_come_by_their_corrected_probability(plain, decision):
    told = plain.client.post("/continuation/rerank", json=BODY).json()
    assert [rank["index"] for rank in told] == ranked(decision)
    assert told[0]["index"] == decision.index
    expected = [decision.probabilities[i] for i in ranked(decision)]
    assert [rank["score"] for rank in told] == pytest.approx(expected, abs=1e-6)
    assert all(rank.keys() == {"index", "score"} for rank in told)
    assert math.fsum(rank["score"] for rank in told) == pytest.approx(1)


def test_raw_scores_are_the_logarithms_and_texts_come_back(plain, decision):
    asked = BODY | {"raw_scores": True, "return_text": True, "truncate": True}
    told = plain.client.post("/continuation/rerank", json=asked).json()
    for rank in told:
        probability = decision.probabilities[rank["index"]]
        assert rank["score"] == pytest.approx(math.log(probability), abs=1e-5)
        assert rank["text"] == BODY["texts"][rank["index"]]


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"query": "w5"}, 422, "texts"),
        (BODY | {"texts": []}, 422, "at least 1 item"),
        (BODY | {"texts": ["w6", " "]}, 422, "candidate 1 is blank"),
        (BODY | {"truncation_direction": "Left"}, 422, "truncation_direction"),
        (BODY | {"texts": [f"w{i}" for i in range(3, 70)]}, 422, "67 candidates"),
    ],
)
def test_tei_is_told_in_its_own_form(plain, body, status, word):
    answer = plain.client.post("/continuation/rerank", json=body)
    assert answer.status_code == status and word in answer.json()["error"]
    assert answer.json().keys() == {"error", "error_type"}
    assert answer.json()["error_type"] == "Validation"


def test_info_says_what_the_service_bears(plain, model):
    told = plain.client.get("/info").json()
    assert told["model_id"] == model.source["model"]
    assert told["model_type"]["reranker"]["label2id"] == {"LABEL_0": 0}
    settings = plain.service.settings
    assert told["max_client_batch_size"] == 400
    assert told["max_input_length"] == min(model.backbone.context, settings.tokens)
    assert told["auto_truncate"] is False


# Cohere's form, and Jina's


@pytest.mark.parametrize("path", CONTINUED)
def test_documents_come_by_relevance(plain, decision, model, path):
    asked = COHERE | {"top_n": 2, "return_documents": True, "model": model.source["model"]}
    told = plain.client.post(path, json=asked).json()
    assert [r["index"] for r in told["results"]] == ranked(decision)[:2]
    for result in told["results"]:
        place = result["index"]
        assert result["relevance_score"] == pytest.approx(decision.probabilities[place], abs=1e-6)
        assert result["document"] == {"text": COHERE["documents"][place]}
    assert told["meta"]["api_version"] == {"version": path[-8]}
    assert told["lastword"]["gates"] == decision.to_dict()["gates"]
    assert told["lastword"]["base_index"] == decision.base_index


def test_documents_may_be_objects_and_tokens_are_counted(plain):
    plain_told = plain.client.post(CONTINUED[1], json=COHERE).json()
    objects = COHERE | {"documents": [{"text": text} for text in COHERE["documents"]]}
    told = plain.client.post(CONTINUED[1], json=objects).json()
    assert told["results"] == plain_told["results"]
    assert all("document" not in result for result in told["results"])
    # <s> and three words of the query; two, one and three of the documents.
    assert told["usage"] == {"total_tokens": 4 + 2 + 1 + 3}


@pytest.mark.parametrize("path", CONTINUED)
@pytest.mark.parametrize(
    ("more", "status", "code", "word"),
    [
        ({"model": "rerank-v3.5"}, 404, "unknown_model", "'rerank-v3.5' is not served here"),
        ({"rank_fields": ["title"]}, 422, "invalid_body", "rank_fields: "),
        ({"max_tokens_per_doc": 10}, 422, "invalid_body", "leave it out"),
        ({"documents": [{"title": "w6"}]}, 422, "invalid_body", "documents.0.object.text"),
        ({"documents": ["w6", 7]}, 422, "invalid_body", "expected a JSON object"),
        ({"documents": ["w6", "w6"]}, 422, "item", "the same tokens"),
        ({"top_n": 0}, 422, "invalid_body", "top_n"),
    ],
)
def test_cohere_is_told_in_its_own_form(plain, path, more, status, code, word):
    answer = plain.client.post(path, json=COHERE | more)
    assert answer.status_code == status
    assert answer.json()["code"] == code and word in answer.json()["message"]
    assert answer.json().keys() == {"message", "code"}


def test_null_is_nothing_said(reading):
    asked = COHERE | {"top_n": None, "max_tokens_per_doc": None, "rank_fields": None}
    assert reading.client.post("/v2/rerank", json=asked).status_code == 200


# The same road as every other answer


def test_the_same_guards_stand_before_it(demo):
    with running(demo, token="letmein", body_bytes=400) as served:
        unknown = served.client.post("/v2/rerank", json=COHERE)
        assert unknown.status_code == 401 and unknown.json()["code"] == "unauthorised"
        assert served.client.post("/rerank", json=BODY).json()["error_type"] == "Validation"
        served.client.headers["authorization"] = "Bearer letmein"
        large = served.client.post("/rerank", json=BODY | {"query": "w5 " * 200})
        assert large.status_code == 413 and "400 bytes" in large.json()["error"]
        typed = served.client.post("/v1/rerank", content=b"{}")
        assert typed.status_code == 415 and "content-type" in typed.json()["message"]
        assert served.client.post("/v1/rerank", json=COHERE).status_code == 200
        assert served.metric("lastword_requests_total", route="/v1/rerank", status="200") == 1
        assert served.metric("lastword_refusals_total", code="body_too_large") == 1


def test_it_waits_in_the_queue_of_items_until_its_deadline(demo):
    held = Held(demo)
    with running(held, deadline_seconds=0.5) as served:
        held.go.clear()
        answer = served.client.post("/rerank", json=BODY)
        held.go.set()
    assert answer.status_code == 504 and answer.json()["error_type"] == "Backend"


def test_under_shadow_the_models_own_order_is_given(model, decision):
    with running(model, shadow=True) as served:
        told = served.client.post(CONTINUED[1], json=COHERE).json()
    assert told["lastword"]["method"] == "base"
    expected = decision.base_probabilities
    for result in told["results"]:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=1e-6)


def test_health_is_both_probes(plain):
    assert plain.client.get("/health").status_code == 200
    plain.service.traffic.draining = True
    answer = plain.client.get("/health")
    plain.service.traffic.draining = False
    assert answer.status_code == 503 and answer.json()["error_type"] == "Unhealthy"
