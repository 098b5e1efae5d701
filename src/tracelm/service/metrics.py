"""What a service counts, in Prometheus' text format."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from tracelm.rule.decision import Decision

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        """Everything is zero."""
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "tracelm_requests", "Answered requests.", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "tracelm_request_seconds",
            "From a request's arrival to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge("tracelm_in_flight", "Requests in hand.", registry=registry)
        self.waiting = Gauge("tracelm_waiting_items", "Items in the queue.", registry=registry)
        self.batch_items = Histogram(
            "tracelm_batch_items",
            "Items computed in one pass of the model.",
            buckets=_ITEMS,
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "tracelm_batch_seconds",
            "Seconds of one pass of the model with its readout.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.decisions = Counter(
            "tracelm_decisions",
            "Decisions of the rule.",
            ["regime", "operator", "changed"],
            registry=registry,
        )
        self.shadow = Counter(
            "tracelm_shadow_changes",
            "Answers that correction would have changed, under --shadow.",
            ["operator"],
            registry=registry,
        )
        self.refusals = Counter(
            "tracelm_refusals", "Items and requests turned down.", ["code"], registry=registry
        )

    def decided(self, decision: Decision) -> None:
        """Count a decision of the rule."""
        changed = "yes" if decision.corrected else "no"
        self.decisions.labels(decision.regime, decision.operator, changed).inc()

    def text(self) -> bytes:
        """All counters, for a scraper."""
        return generate_latest(self.registry)
