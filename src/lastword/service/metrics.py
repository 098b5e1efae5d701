"""What a service counts, in Prometheus' text format."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from lastword.records.decision import Decision

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.served = gauge("lastword_info", "1, of what is served.", ["version", "model"])
        self.requests = counter("lastword_requests", "Answered requests.", ["route", "status"])
        self.seconds = histogram(
            "lastword_request_seconds",
            "From a request's arrival to the end of its answer.",
            ["route"],
            buckets=_SECONDS,
        )
        self.in_flight = gauge("lastword_in_flight", "Requests in hand.")
        self.waiting_items = gauge("lastword_waiting_items", "Items in their queue.")
        self.body_bytes = gauge("lastword_body_bytes", "Bytes of bodies in hand.")
        self.oldest = gauge(
            "lastword_oldest_waiting_seconds", "Age of the oldest order that waits or is computed."
        )
        self.batch_items = histogram(
            "lastword_batch_items", "Items computed in one pass of the model.", buckets=_ITEMS
        )
        self.batch_seconds = histogram(
            "lastword_batch_seconds",
            "Seconds of one pass of the model with its readout.",
            buckets=_SECONDS,
        )
        self.decisions = counter(
            "lastword_decisions", "Decisions of the rule.", ["regime", "operator", "changed"]
        )
        self.shadow = counter(
            "lastword_shadow_changes",
            "Answers that correction would have changed, under --shadow.",
            ["operator"],
        )
        self.withheld = counter(
            "lastword_withheld", "Overrides that the certificate did not allow.", ["operator"]
        )
        self.deferred = counter("lastword_deferred", "Answers too unsure for the certificate.")
        self.labelled = gauge("lastword_labelled", "Groups whose truth came back.")
        self.broken = gauge("lastword_broken", "Of them, answers that correction made wrong.")
        self.fixed = counter(
            "lastword_fixed", "Answers that correction made right since the start."
        )
        self.unkept = counter(
            "lastword_unkept", "Answers and labels that the disk did not take, which judge nothing."
        )
        self.unbet = counter(
            "lastword_unbet", "Answers and labels that no test saw, as their group had.", ["what"]
        )
        self.monitor = gauge(
            "lastword_monitor_log_wealth", "Evidence that too many break; alarms at log(1/delta)."
        )
        self.alarm = gauge("lastword_alarm", "Whether the monitor has raised its alarm.")
        self.slipping = gauge("lastword_slipping", "Whether the broken rate seems to have risen.")
        self.drift = gauge(
            "lastword_drift_log_wealth", "Evidence that a statistic has moved.", ["statistic"]
        )
        self.drifted = gauge("lastword_drifted", "Whether it has warned.", ["statistic"])
        self.dropped_lines = gauge(
            "lastword_log_lines_dropped", "Lines of the log that nothing took, since the start."
        )
        self.refusals = counter("lastword_refusals", "Items and requests turned down.", ["code"])

    def decided(self, decision: Decision) -> None:
        """Count a decision of the rule."""
        changed = "yes" if decision.corrected else "no"
        self.decisions.labels(decision.regime, decision.operator, changed).inc()
        if decision.withheld is not None:
            self.withheld.labels(decision.withheld.operator).inc()
        if decision.deferred:
            self.deferred.inc()

    def text(self) -> bytes:
        """All counters, for a scraper."""
        return generate_latest(self.registry)
