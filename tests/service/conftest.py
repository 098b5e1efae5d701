"""Fixtures of most tests of the service; a file that needs another model overrides them."""

from collections.abc import Iterator
from itertools import count

import populations
import pytest
from certified import ITEMS
from postgres import FOLDERS, Postgres, postgres
from served import Held, Running, running, tracer

from lastword import Decider, Item, ProbeClassifier, Tracer
from lastword.probes import Probe
from lastword.records.decision import Decision
from lastword.trust.certificate import Certificate
from lastword.trust.drift import statistics
from lastword.trust.policy import Policy
from lastword.trust.terms import Terms


@pytest.fixture(scope="module")
def model() -> Tracer:
    return tracer()


@pytest.fixture(scope="module")
def plain(model: Tracer) -> Iterator[Running]:
    """A service with default settings, for tests that do not change it."""
    with running(model) as served:
        yield served


@pytest.fixture
def held(model: Tracer) -> Iterator[Held]:
    """The model; a test can make it wait before a group."""
    held = Held(model)
    yield held
    held.go.set()


@pytest.fixture(scope="session")
def trace_decisions() -> list[Decision]:
    """TRACE's answers without a certificate to the items that certified services get."""
    return list(Tracer.demo().correct_many(ITEMS))


@pytest.fixture(scope="session")
def overridden(trace_decisions: list[Decision]) -> list[Item]:
    """The items whose answers TRACE changes."""
    return [item for item, d in zip(ITEMS, trace_decisions, strict=True) if d.corrected]


@pytest.fixture(scope="session")
def certificate(trace_decisions: list[Decision]) -> Certificate:
    """A certificate for the embedded model; these answers are the reference for drift."""
    values = [statistics(decision.to_dict()) for decision in trace_decisions]
    names = {name for row in values for name in row} - {"mix"}
    reference = {n: tuple(v[n] for v in values if n in v) for n in sorted(names)}
    policy, terms = Policy(("decisive", "early"), 0.25), Terms(0.1, 0.05)
    certificate: Certificate = populations.certificate(
        Decider.demo().subject, policy, terms, 18, 1, 120, reference=reference, date="2026-11-21"
    )
    return certificate


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A Postgres server; a test that stops it starts it again."""
    if not FOLDERS:
        pytest.skip("needs Debian's package postgresql")
    with postgres() as process:
        yield process


NUMBERS = count()


@pytest.fixture
def database(server: Postgres) -> str:
    """The address of a new database for one test."""
    name = f"test{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name}")
    return server.address(name)


@pytest.fixture(scope="session")
def topic() -> Probe:
    """A probe for the topic of a text, on the embedded model."""
    texts = ["the red fox runs", "a cat sleeps here", "pay the bill now", "the invoice is late"]
    labels = ["animal", "animal", "money", "money"]
    probe: Probe = ProbeClassifier(Tracer.demo(), "What is it about?").fit(texts, labels).probe_
    return probe
