"""Metrics of a service, in Prometheus' text format."""

from functools import partial
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics import MetricWrapperBase

from lastword.decide.answer import Answer
from lastword.records.decision import Decision

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_ITEMS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Kind = TypeVar("Kind", bound=MetricWrapperBase)


class Metrics:
    """The metrics of one service, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._decided = self._deferred = 0

        def make(kind: type[Kind], name: str, description: str, *labels: str, **more: Any) -> Kind:
            return kind(f"lastword_{name}", description, labels, registry=self.registry, **more)

        gauge, counter = partial(make, Gauge), partial(make, Counter)
        spans = partial(make, Histogram, buckets=_SECONDS)
        whole = "From a request's arrival to the end of its answer."
        self.served = gauge("info", "1, of what is served.", "version", "model")
        self.requests = counter("requests", "Answered requests.", "route", "status")
        self.seconds = spans("request_seconds", whole, "route")
        self.in_flight = gauge("in_flight", "Requests in hand.")
        self.waiting_items = gauge("waiting_items", "Items in their queue.")
        self.oldest = gauge("oldest_waiting_seconds", "Age of what waits or is computed longest.")
        self.batch_items = make(Histogram, "batch_items", "Items of one pass.", buckets=_ITEMS)
        self.batch_seconds = spans("batch_seconds", "Seconds of one pass with its readout.")
        self.decisions = counter("decisions", "Answers.", "regime", "operator", "changed")
        self.shadow = counter("shadow_changes", "Answers that --shadow hid.", "operator")
        self.withheld = counter("withheld", "Overrides that were not allowed.", "operator")
        self.deferred = counter("deferred", "Answers too unsure for the certificate.")
        self.answered = gauge("answered_share", "Share of answers that were not deferred.")
        self.answered.set_function(lambda: 1 - self._deferred / max(self._decided, 1))
        self.labelled = gauge("labelled", "Groups whose truth came back, by monitor.", "of")
        self.broken = gauge("broken", "Of them, broken answers, or wrong ones.", "of")
        self.fixed = counter("fixed", "Answers that correction made right since the start.")
        self.unkept = counter("unkept", "Answers and labels that the disk did not take.")
        self.monitor = gauge("monitor_log_wealth", "Evidence; alarms at log(1/delta).", "of")
        self.alarm = gauge("alarm", "Whether the monitor has raised its alarm.", "of")
        self.slipping = gauge("slipping", "Whether the rate seems to have risen.", "of")
        self.drift = gauge("drift_log_wealth", "Evidence that it has moved.", "statistic")
        self.drifted = gauge("drifted", "Whether it has warned.", "statistic")
        self.dropped_lines = gauge("log_lines_dropped", "Lines of the log that nothing took.")
        self.refusals = counter("refusals", "Items and requests turned down.", "code")

    def decided(self, decision: Decision | Answer) -> None:
        """Count a decision of the rule or of a probe."""
        changed = "yes" if decision.corrected else "no"
        if isinstance(decision, Decision):
            self.decisions.labels(decision.regime, decision.operator, changed).inc()
            if decision.withheld is not None:
                self.withheld.labels(decision.withheld.operator).inc()
        else:
            self.decisions.labels("probe", "probe", changed).inc()
        self._decided += 1
        if decision.deferred:
            self._deferred += 1
            self.deferred.inc()
