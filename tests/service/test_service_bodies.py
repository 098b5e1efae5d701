"""Bodies that the schema forbids are refused with 4xx; those that it allows never end in 5xx."""

import warnings

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from served import running, tracer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from its dependencies
    import schemathesis
    from schemathesis import checks
    from schemathesis.specs.openapi import checks as conformance

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    # beartype draws samples of lists in the service's threads while cases are drawn in this one.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]
CHECKS = [
    checks.not_a_server_error,
    conformance.content_type_conformance,
    conformance.response_schema_conformance,
    conformance.status_code_conformance,
]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def served():
    with running(tracer()) as service:
        yield service


def bounded(count: int):
    return settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def operation(served, path: str):
    schema = schemathesis.openapi.from_dict(served.client.get("/openapi.json").json())
    return schema[path]["POST"]


def call(served, case) -> requests.Response:
    with requests.Session() as session:
        session.trust_env = False
        return case.call(base_url=served.url, session=session)


@pytest.mark.parametrize(
    ("path", "count"),
    [("/v1/correct", 60), ("/v1/correct/batch", 30), (CHAT, 30)],
)
def test_bodies_that_the_schema_forbids_are_refused(served, path, count):
    mode = schemathesis.GenerationMode.NEGATIVE
    statuses = []

    @bounded(count)
    @given(case=operation(served, path).as_strategy(generation_mode=mode))
    def send(case):
        answer = call(served, case)
        statuses.append(answer.status_code)
        assert 400 <= answer.status_code < 500, (answer.status_code, case.body)
        refusal = answer.json()
        if path == CHAT:  # in OpenAI's form
            assert refusal.get("message") or refusal["error"]
        else:
            assert refusal["schema"] == 1 and refusal["error"]["message"]

    send()
    assert len(statuses) >= count
    assert served.client.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", ["/v1/correct", "/v1/correct/batch", CHAT])
def test_bodies_that_the_schema_allows_get_a_valid_response(served, path):
    mode = schemathesis.GenerationMode.POSITIVE

    @bounded(40)
    @given(case=operation(served, path).as_strategy(generation_mode=mode))
    def send(case):
        case.validate_response(call(served, case), checks=CHECKS)

    send()
    assert served.events("failure") == []
