"""Oversight: whether a certificate still holds for what a service answers.

Labels that come back feed the monitor of the broken rate; what every decision shows feeds the tests
of drift (of a certified probe's answers it is their likeness): of items of the same text the first
one, among those that are remembered. Who labels may name a group, of which the first label counts;
who asks may not. Both may be looked at always. An alarm stays; under `--on-alarm shadow` correction
is off from then on. Slipping is a warning that passes and switches nothing. What is judged is the
certified correction, also while shadow hides it. Services that share a database are one sequence:
each event begins with what the others have seen.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from lastword.decide.answer import Probed, SingleAnswer
from lastword.decide.item import candidates_of
from lastword.decide.plan import Part
from lastword.errors import InputError
from lastword.files.strict_json import strict
from lastword.records.decision import Decision
from lastword.service.database import PAUSE_SECONDS, Unkept
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
    """The monitor and the drift tests of a service, called by its loop alone.

    Raises:
        InputError: The state cannot be used.
    """

    def __init__(
        self, certificate: Certificate, settings: Settings, metrics: Metrics, log: Log
    ) -> None:
        self._metrics, self._log = metrics, log
        self._ledger = Ledger(
            settings.state,
            _fingerprint(certificate),
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
        """Let the state go."""
        self._ledger.close()

    def answered(
        self, decision: Decision, item: Item, content: Mapping[str, Any], value: str | None = None
    ) -> str | None:
        """Take note of an answer; the id under which its label may come.

        The service answers though its disk refuses, or its database is away: the id is then None,
        and the log says why.
        """
        (text,) = marks(None, item.prompt, item.candidates, None)
        request = (item.prompt, "") if value is None else (value, item.question or "")
        words = self._words(*request, item.candidates)
        return self._note(Entry.of(decision), statistics(content), text, words)

    def probed(self, answer: SingleAnswer, part: Part, text: str) -> str | None:
        """Take note of a probe's answer, as `answered`; drift watches that of the certified one."""
        assert isinstance(answer.decision, Probed) and part.probe is not None
        like, options = answer.decision.likeness, candidates_of(part.question)
        (text_mark,) = marks(None, text, options, None)
        certified = self._probe is not None and self._probe.digest == part.probe.digest
        seen = {LIKENESS: like} if certified and like is not None else {}
        words = self._words(text, part.question.instructions, options)
        return self._note(Entry(len(options), [], [], overridden=False), seen, text_mark, words)

    def _words(self, text: str, instructions: str, choices: Sequence[str]) -> Words | None:
        """Return what is kept of a request in words, where that was asked for."""
        entry = {"text": text, "instructions": instructions, "choices": list(choices)}
        return entry if self._keeps_texts else None

    def _note(
        self, entry: Entry, seen: dict[str, float], text: str, words: Words | None
    ) -> str | None:
        name = uuid.uuid4().hex
        try:
            with self._ledger.event():
                self._catch_up()
                bet = not self._ledger.knows(text)
                seen = seen if bet else {}
                warned = self.drift.see(seen)
                self._ledger.remember(name, entry, seen, self.drift.state(), text, words)
        except Unkept as error:
            self._tell_unkept(error)
            return None
        self._measure()
        if not bet:
            self._metrics.unbet.labels("answers").inc()
        for statistic in warned:
            self._log.event("drift", statistic=statistic, seen=self.drift.tests[statistic].seen)
        return name

    def labelled(self, name: str, right: Sequence[int], kin: str | None = None) -> dict[str, Any]:
        """Take the label of an answer; what it says of it and of the certificate.

        Raises:
            Refusal: An id that is unknown or has its label, a place that is none, or a disk or a
                database that does not take the label.
        """
        try:
            with self._ledger.event():
                self._catch_up()
                entry = self._ledger.find(name)
                if not right or not all(0 <= place < entry.candidates for place in right):
                    what = f"right is a place from 0 to {entry.candidates - 1}, or several"
                    raise Refusal("invalid_body", what)
                broken, fixed = entry.judge(right)
                first = entry.known and self._ledger.first(name, kin)
                watched = first and (self._terms.promise == "breaks" or broken or fixed)
                after = self.monitor.seen(broken) if watched else self.monitor
                counts = _counts(after)
                state = counts | {"slip": after.slip, "wealth": after.wealth}
                self._ledger.label(name, kin, right, monitor=state)
        except Unkept as error:  # nothing is counted that a restart would forget
            self._tell_unkept(error)
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
        """Return the state of monitor and drift as plain JSON values; None if unknown."""
        remembered = None
        with suppress(Unkept), self._ledger.event():
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
        """Take over what any service has seen since the last event, or ever."""
        if not (anew or self._ledger.shared):
            return
        if (state := self._ledger.state("monitor")) is not None:
            state |= {name: tuple(state.get(name, ())) for name in ("slip", "wealth")}
            self._watch(Monitor(self._terms.watched, self._terms.delta, **state))
        if (state := self._ledger.state("drift")) is not None:
            if anew or not self.drift.follow(self._ledger.seen(anew=False), state):
                self.drift.resume(self._ledger.seen(), state)

    def _watch(self, after: Monitor) -> None:
        """Say in the log what the monitor has come to."""
        before, self.monitor = self.monitor, after
        if after.alarm and not before.alarm:
            self._log.event("alarm", **_counts(after), log_wealth=round(after.log_wealth, 3))
        if after.slipping and not before.slipping:
            self._log.event("slipping", **_counts(after), log_slip=round(after.log_slip, 3))

    def _tell_unkept(self, error: Unkept) -> None:
        self._metrics.unkept.inc()
        self._log.failure(error, at="state", reason=str(error))  # a database's: no text is in it

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
        InputError: What only a certificate gives a meaning to is asked for without one.
    """
    if certificate is not None:
        try:
            return Oversight(certificate, settings, metrics, log)
        except Unkept as error:
            raise InputError(f"cannot read the state: {error}") from error
    if settings.state is not None or settings.on_alarm != "log":
        raise InputError(
            "--state and --on-alarm oversee a certificate, and --state keeps what "
            "--correction batch-calibrated has learned: give --certificate or that correction"
        )
    return None


def _counts(monitor: Monitor) -> dict[str, Any]:
    return {name: getattr(monitor, name) for name in ("labelled", "broken", "alarm")}


def _fingerprint(certificate: Certificate) -> str:
    content = json.dumps(strict(certificate.to_dict()), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
