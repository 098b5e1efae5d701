"""What most tests of the service stand on; a file that needs another model has its own."""

from collections.abc import Iterator

import pytest
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
def topic() -> Probe:
    """A probe of what a text is about, on the embedded model."""
    texts = ["the red fox runs", "a cat sleeps here", "pay the bill now", "the invoice is late"]
    labels = ["animal", "animal", "money", "money"]
    probe: Probe = ProbeClassifier(Tracer.demo(), "What is it about?").fit(texts, labels).probe_
    return probe
