"""What most tests of the service stand on; a file that needs another model has its own."""

from collections.abc import Iterator
from itertools import count

import populations
import pytest
from certified import ASKED
from postgres import FOLDERS, Postgres, postgres
from served import Held, Running, running, tracer

from lastword import Decider, ProbeClassifier, Tracer
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
    """A service as it comes, for tests that leave it as it is."""
    with running(model) as served:
        yield served


@pytest.fixture
def held(model: Tracer) -> Iterator[Held]:
    """The model, waiting before every group until it is let go."""
    held = Held(model)
    yield held
    held.go.set()


@pytest.fixture(scope="session")
def free() -> list[Decision]:
    """What TRACE answers by itself to what certified services are asked."""
    return list(Tracer.demo().correct_many(ASKED))


@pytest.fixture(scope="session")
def certificate(free: list[Decision]) -> Certificate:
    """Of the embedded model, with these answers as the reference of drift."""
    seen = [statistics(decision.to_dict()) for decision in free]
    names = {name for values in seen for name in values} - {"mix"}
    reference = {n: tuple(v[n] for v in seen if n in v) for n in sorted(names)}
    policy, terms = Policy(("decisive", "early"), 0.25), Terms(0.1, 0.05)
    made: Certificate = populations.certificate(
        Decider.demo().subject, policy, terms, 18, 1, 120, reference=reference, date="2026-11-21"
    )
    return made


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """A Postgres server, which a test that ends it starts again."""
    if not FOLDERS:
        pytest.skip("needs Debian's package postgresql")
    with postgres() as own:
        yield own


NUMBERS = count()


@pytest.fixture
def database(server: Postgres) -> str:
    """The address of a database of the test's own."""
    name = f"own{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name}")
    return server.address(name)


@pytest.fixture(scope="session")
def topic() -> Probe:
    """A probe of what a text is about, on the embedded model."""
    texts = ["the red fox runs", "a cat sleeps here", "pay the bill now", "the invoice is late"]
    labels = ["animal", "animal", "money", "money"]
    probe: Probe = ProbeClassifier(Tracer.demo(), "What is it about?").fit(texts, labels).probe_
    return probe
