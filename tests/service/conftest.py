"""What most tests of the service stand on; a file that needs another model has its own."""

from collections.abc import Iterator
from itertools import count

import pytest
from postgres import FOLDERS, Postgres, postgres
from served import Held, Running, running, tracer

from lastword import ProbeClassifier, Tracer
from lastword.probes import Probe


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
