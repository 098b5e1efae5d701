"""Oversight: tests of whether a certificate still holds for the answers of a service.

Labels feed the monitor of the broken rate. Statistics of each decision feed the tests of drift; for
a certified probe's answer the statistic is its likeness. Only the first remembered answer to a text
counts, and only the first label of a group, which the labeller may name. Both tests are valid at
any time. An alarm is permanent; under `--on-alarm shadow` it turns correction off. Slipping is a
warning that can end and changes nothing. The tests judge the certified correction, even while
shadow hides it. Services that share a database are one sequence: each event begins by reading the
events of the others.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lastword.decide.answer import Answer, Probed
from lastword.decide.answerers import Work
from lastword.decide.item import candidates_of
from lastword.errors import InputError
from lastword.files.strict_json import strict
from lastword.model.weights.identity import text_digest
from lastword.records.decision import Decision
from lastword.service.database import PAUSE_SECONDS, DatabaseError
from lastword.service.ledger import Entry, Ledger
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.trust.certificate import Certificate
from lastword.trust.drift import LIKENESS, Drift, statistics
from lastword.trust.groups import marks
from lastword.trust.monitor import Monitor

Words = dict[str, Any]


class Oversight:
    """The monitor and the drift tests of a service; only the event loop's thread calls it.

    Raises:
        InputError: The state cannot be used.
    """

    def __init__(
        self, certificate: Certificate, settings: Settings, metrics: Metrics, log: Log
    ) -> None:
        self._metrics, self._log = metrics, log
        self._ledger = Ledger(
            settings.state,
            text_digest(json.dumps(strict(certificate.to_dict()), sort_keys=True)),
            items=settings.feedback_items,
            seconds=settings.feedback_seconds,
        )
        self._terms, self._probe = certificate.terms, certificate.probe
        self._keeps_texts = settings.keep_texts
        self.monitor = Monitor(self._terms.watched, self._terms.delta)
        self.drift = Drift(certificate.reference, certificate.terms.delta)
        with self._ledger.event():
            self._catch_up(anew=True)
        if self._ledger.fault is not None:
            what = "answers have no feedback_id, and labels are refused, until --state has room"
            self._log.event("unkept", reason=str(self._ledger.fault), told=what)
        self._measure()

    def close(self) -> None:
        """Close the state."""
        self._ledger.close()

    def answered(
        self, decision: Decision, item: Item, content: Mapping[str, Any], value: str | None = None
    ) -> str | None:
        """Store an answer, and return the id for its label.

        If the disk or the database fails, the id is None and the log has the reason, so that the
        service can still answer.
        """
        (text,) = marks(None, item.prompt, item.candidates, None)
        request = (item.prompt, "") if value is None else (value, item.question or "")
        words = self._words(*request, item.candidates)
        return self._note(Entry.of(decision), statistics(content), text, words)

    def probed(self, answer: Answer, work: Work) -> str | None:
        """Store a probe's answer, as `answered`; drift tests the certified probe's."""
        assert isinstance(answer.decision, Probed) and work.probe is not None
        like, options = answer.decision.likeness, candidates_of(work.question)
        (text_mark,) = marks(None, work.text, options, None)
        certified = self._probe is not None and self._probe.digest == work.probe.digest
        values = {LIKENESS: like} if certified and like is not None else {}
        words = self._words(work.text, work.question.instructions, options)
        return self._note(Entry(len(options), [], [], overridden=False), values, text_mark, words)

    def _words(self, text: str, instructions: str, choices: Sequence[str]) -> Words | None:
        """Return the request in words under `--keep-texts`, else None."""
        entry = {"text": text, "instructions": instructions, "choices": list(choices)}
        return entry if self._keeps_texts else None

    def _note(
        self, entry: Entry, values: dict[str, float], text: str, words: Words | None
    ) -> str | None:
        name = uuid.uuid4().hex
        try:
            with self._ledger.event():
                self._catch_up()
                is_first = not self._ledger.knows(text)
                values = values if is_first else {}
                warned = self.drift.see(values)
                self._ledger.remember(name, entry, values, self.drift.state(), text, words)
        except DatabaseError as error:
            self._log_unkept(error)
            return None
        self._measure()
        if not is_first:
            self._metrics.unbet.labels("answers").inc()
        for statistic in warned:
            self._log.event("drift", statistic=statistic, seen=self.drift.tests[statistic].seen)
        return name

    def labelled(self, name: str, right: Sequence[int], group: str | None = None) -> dict[str, Any]:
        """Store the label of an answer, and return its effect on the answer and the certificate.

        Raises:
            Refusal: The id is unknown or has a label, a place is not one of a candidate, or the
                disk or the database fails.
        """
        try:
            with self._ledger.event():
                self._catch_up()
                entry = self._ledger.find(name)
                if not right or not all(0 <= place < entry.candidates for place in right):
                    what = f"right is a place from 0 to {entry.candidates - 1}, or several"
                    raise Refusal("invalid_body", what)
                broken, fixed = entry.judge(right)
                # A probe's answer has no base: nobody knows if the model was right.
                first = bool(entry.base) and self._ledger.first(name, group)
                # For a promise of a gain, the monitor tests the share of breaks among changes.
                watched = first and (self._terms.promise == "breaks" or broken or fixed)
                after = self.monitor.seen(broken) if watched else self.monitor
                counts = _counts(after)
                state = counts | {"slip": after.slip, "wealth": after.wealth}
                self._ledger.label(name, group, right, monitor=state)
        except DatabaseError as error:  # a label that a restart would forget is not counted
            self._log_unkept(error)
            what = "the label cannot be kept, and the service's log says why; send it again"
            raise Refusal("unkept", what, retry_after=PAUSE_SECONDS) from error
        self._watch(after)
        self._measure()
        if not first:
            self._metrics.unbet.labels("labels").inc()
        if fixed and first:
            self._metrics.fixed.inc()
        outcome = {"overridden": entry.overridden, "was_broken": broken, "was_fixed": fixed}
        return outcome | {"counts": first} | counts | {"slipping": after.slipping}

    def describe(self) -> dict[str, Any]:
        """Return the state of the tests as JSON; `remembered` is None if it cannot be read."""
        remembered = None
        with suppress(DatabaseError), self._ledger.event():
            self._catch_up()
            remembered = self._ledger.counts()
        drift = {name: test.log_wealth for name, test in self.drift.tests.items()}
        monitor = asdict(self.monitor) | {
            "log_wealth": self.monitor.log_wealth,
            "log_slip": self.monitor.log_slip if self.monitor.slip else None,
            "slipping": self.monitor.slipping,
        }
        drifted = sorted(self.drift.warned)
        return {"monitor": monitor, "drift": drift, "drifted": drifted, "remembered": remembered}

    def _catch_up(self, *, anew: bool = False) -> None:
        """Read the state of the last event of any service; with `anew`, start from it."""
        if not (anew or self._ledger.shared):
            return
        if (state := self._ledger.state("monitor")) is not None:
            state |= {name: tuple(state.get(name, ())) for name in ("slip", "wealth")}
            self._watch(Monitor(self._terms.watched, self._terms.delta, **state))
        if (state := self._ledger.state("drift")) is not None:
            if anew or not self.drift.follow(self._ledger.seen(anew=False), state):
                self.drift.resume(self._ledger.seen(), state)

    def _watch(self, after: Monitor) -> None:
        """Replace the monitor, and log an alarm or a slip that is new."""
        before, self.monitor = self.monitor, after
        if after.alarm and not before.alarm:
            self._log.event("alarm", **_counts(after), log_wealth=round(after.log_wealth, 3))
        if after.slipping and not before.slipping:
            self._log.event("slipping", **_counts(after), log_slip=round(after.log_slip, 3))

    def _log_unkept(self, error: DatabaseError) -> None:
        self._metrics.unkept.inc()
        self._log.failure(error, at="state", reason=str(error))  # it quotes no text of a request

    def _measure(self) -> None:
        metrics, monitor = self._metrics, self.monitor
        metrics.labelled.set(monitor.labelled)
        metrics.broken.set(monitor.broken)
        metrics.alarm.set(monitor.alarm)
        metrics.monitor.set(monitor.log_wealth)
        metrics.slipping.set(monitor.slipping)
        for name, test in self.drift.tests.items():
            metrics.drift.labels(name).set(test.log_wealth)
            metrics.drifted.labels(name).set(name in self.drift.warned)


def oversee(
    certificate: Certificate | None, settings: Settings, metrics: Metrics, log: Log
) -> Oversight | None:
    """Return the oversight of a service, or None without a certificate.

    Raises:
        InputError: An option needs a certificate and there is none, or the state is unusable.
    """
    if certificate is not None:
        try:
            return Oversight(certificate, settings, metrics, log)
        except DatabaseError as error:
            raise InputError(f"cannot read the state: {error}") from error
    if settings.state is not None or settings.on_alarm != "log":
        raise InputError(
            "--state and --on-alarm need a certificate: give --certificate, or leave them out"
        )
    return None


def _counts(monitor: Monitor) -> dict[str, Any]:
    return {name: getattr(monitor, name) for name in ("labelled", "broken", "alarm")}
