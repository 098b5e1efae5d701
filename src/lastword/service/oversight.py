"""Oversight: tests of whether a certificate still holds for the answers of a service.

Labels feed two monitors: of the answers that correction breaks, and, if the certificate promises a
maximum error, of the wrong ones among the answers given. Statistics of each decision, or the
likeness of a probe's, feed the tests of drift. Only the first remembered answer to a text counts,
and only the first label of a group. The tests judge the certified answers, even while shadow hides
them. Services that share a database are one sequence: each event begins by reading the others'.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from itertools import product

import numpy as np

from lastword.decide.answer import Answer
from lastword.decide.answerers import Query
from lastword.decide.item import candidates_of
from lastword.errors import InputError
from lastword.files.strict_json import strict
from lastword.model.weights.identity import text_digest
from lastword.records.decision import Decision
from lastword.rule.geometry import tied_first
from lastword.service.database import PAUSE_SECONDS, DatabaseError
from lastword.service.ledger import Entry, Ledger
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.refusal import Refusal
from lastword.service.schema import Object
from lastword.service.settings import Settings
from lastword.text.items import Item
from lastword.text.question import Question, question_digest
from lastword.trust.certificate import Certificate
from lastword.trust.drift import LIKENESS, Drift, statistics
from lastword.trust.groups import marks
from lastword.trust.monitor import Monitor

BREAKS, ERRORS = "breaks", "errors"  # the monitors
_COUNTS = ("labelled", "broken", "alarm")


class Oversight:
    """The monitors and the drift tests of a service; only the event loop's thread calls it.

    Raises:
        InputError: The state cannot be used.
    """

    def __init__(
        self, certificate: Certificate, settings: Settings, metrics: Metrics, log: Log
    ) -> None:
        self._metrics, self._log, self._certificate = metrics, log, certificate
        digest = text_digest(json.dumps(strict(certificate.to_dict()), sort_keys=True))
        self.ledger = Ledger(settings.state, digest, settings.feedback_items)
        self._keeps_texts = settings.keep_texts
        terms = certificate.terms
        self.monitors = {BREAKS: Monitor(terms.watched, terms.delta)}
        if certificate.threshold is not None and certificate.error_rate is not None:
            self.monitors[ERRORS] = Monitor(certificate.error_rate, terms.delta)
        self.drift = Drift(certificate.reference, terms.delta)
        try:
            with self.ledger.event():
                self._catch_up(anew=True)
        except DatabaseError as error:
            raise InputError(f"cannot read the state: {error}") from error
        self._publish()

    def _publish(self) -> None:
        metrics, tests = self._metrics, self.drift.tests
        gauges = {"labelled": metrics.labelled, "broken": metrics.broken, "alarm": metrics.alarm}
        gauges |= {"log_wealth": metrics.monitor, "slipping": metrics.slipping}
        for kind, (name, gauge) in product(self.monitors, gauges.items()):
            gauge.labels(kind).set_function(partial(self._figure, kind, name))
        for name in tests:
            metrics.drift.labels(name).set_function(partial(getattr, tests[name], "log_wealth"))
            metrics.drifted.labels(name).set_function(partial(self._has_warned, name))

    def _figure(self, kind: str, name: str) -> float:
        return float(getattr(self.monitors[kind], name))

    def _has_warned(self, name: str) -> float:
        return float(name in self.drift.warned)

    @property
    def alarm(self) -> bool:
        """True after an alarm of any monitor."""
        return any(monitor.alarm for monitor in self.monitors.values())

    def answered(self, decision: Decision, item: Item, work: Query | None = None) -> str | None:
        """Store an answer, and return the id for its label; None if it cannot be kept.

        `work` is that of a question.
        """
        base, shown = (tied_first(s).tolist() for s in (decision.base_scores, decision.scores))
        given = self._promised(None if work is None else work.question) and not decision.deferred
        entry = Entry(len(decision.candidates), base, shown, decision.corrected, given)
        (mark,) = marks(None, item.prompt, item.candidates, None)
        text = (item.prompt, "") if work is None else (work.text, work.question.instructions)
        return self._note(entry, statistics(decision.to_dict()), mark, *text, item.candidates)

    def probed(self, answer: Answer, work: Query) -> str | None:
        """Store a probe's answer, as `answered`; drift tests the certified probe's."""
        assert work.probe is not None
        like, options = answer.likeness, candidates_of(work.question)
        certified = self._certificate.probe
        is_certified = certified is not None and certified.digest == work.probe.digest
        texts = [option.text for option in work.question.options]
        shares = np.bincount(list(map(options.index, texts)), answer.probabilities)
        given = is_certified and self._certificate.threshold is not None and not answer.deferred
        entry = Entry(len(options), [], tied_first(shares).tolist(), given=given)
        (mark,) = marks(None, work.text, options, None)
        values = {LIKENESS: like} if is_certified and like is not None else {}
        instructions = work.question.instructions
        return self._note(entry, values, mark, work.text, instructions, options)

    def _promised(self, question: Question | None) -> bool:
        """Return True if the certificate promises a maximum error of the model's answers to it."""
        if self._certificate.threshold is None or self._certificate.probe is not None:
            return False
        certified = self._certificate.questions
        return not certified or (question is not None and question_digest(question) in certified)

    def _note(
        self,
        entry: Entry,
        values: Mapping[str, float],
        mark: str,
        text: str,
        instructions: str,
        choices: Sequence[str],
    ) -> str | None:
        name, words = uuid.uuid4().hex, None
        if self._keeps_texts:
            words = {"text": text, "instructions": instructions, "choices": list(choices)}
        try:
            with self.ledger.event():
                self._catch_up()
                values = {} if self.ledger.knows(mark) else values
                warned = self.drift.see(values)
                self.ledger.remember(name, entry, mark, words)
                self.ledger.see(values, self.drift.state())
        except DatabaseError as error:
            self._log_unkept(error)
            return None
        for statistic in warned:
            self._log.event("drift", statistic=statistic, seen=self.drift.tests[statistic].seen)
        return name

    def labelled(self, name: str, right: Sequence[int], group: str | None = None) -> Object:
        """Store the label of an answer, and return its effect; refuse one that cannot be kept."""
        try:
            with self.ledger.event():
                self._catch_up()
                entry = self.ledger.find(name)
                if not right or not all(0 <= place < entry.candidates for place in right):
                    what = f"right is a place from 0 to {entry.candidates - 1}, or several"
                    raise Refusal("invalid_body", what)
                broken, fixed, wrong = entry.judge(right)
                first = self.ledger.first(name, group)
                after = self._after(entry, broken, fixed, wrong) if first else self.monitors
                states = {kind: asdict(monitor) for kind, monitor in after.items()}
                self.ledger.label(name, group, right, states)
        except DatabaseError as error:  # a label that a restart would forget is not counted
            self._log_unkept(error)
            what = "the label cannot be kept, and the service's log says why; send it again"
            raise Refusal("unkept", what, retry_after=PAUSE_SECONDS) from error
        counts = first and (bool(entry.base) or entry.given)
        self._watch(after)
        if fixed and counts:
            self._metrics.fixed.inc()
        outcome = {"overridden": entry.overridden, "was_broken": broken, "was_fixed": fixed}
        outcome |= {"was_wrong": wrong, "counts": counts, "alarm": self.alarm}
        outcome |= {"slipping": any(monitor.slipping for monitor in after.values())}
        counted = {"labelled": after[BREAKS].labelled, "broken": after[BREAKS].broken}
        if ERRORS in after:
            counted |= {"given": after[ERRORS].labelled, "wrong": after[ERRORS].broken}
        return outcome | counted

    def _after(self, entry: Entry, broken: bool, fixed: bool, wrong: bool) -> dict[str, Monitor]:
        after = dict(self.monitors)
        # A probe's answer has no base: nobody knows if the model was right. For a promise of a
        # gain, the monitor tests the share of breaks among changes.
        if entry.base and (self._certificate.terms.promise == "breaks" or broken or fixed):
            after[BREAKS] = after[BREAKS].seen(broken)
        if entry.given:
            after[ERRORS] = after[ERRORS].seen(wrong)
        return after

    def describe(self) -> Object:
        """Return the state of the tests as JSON; `remembered` is None if it cannot be read."""
        remembered = None
        with suppress(DatabaseError), self.ledger.event():
            self._catch_up()
            remembered = self.ledger.counts()
        monitors = {
            kind: asdict(monitor)
            | {"log_wealth": monitor.log_wealth, "slipping": monitor.slipping}
            | {"log_slip": monitor.log_slip if monitor.slip else None}
            for kind, monitor in self.monitors.items()
        }
        drift = {name: test.log_wealth for name, test in self.drift.tests.items()}
        drifted = sorted(self.drift.warned)
        return {"monitors": monitors, "drift": drift, "drifted": drifted, "remembered": remembered}

    def _catch_up(self, *, anew: bool = False) -> None:
        """Read the state of the last event of any service; with `anew`, start from it."""
        if not (anew or self.ledger.shared):
            return
        if (states := self.ledger.state("monitors")) is not None:
            self._watch({kind: Monitor(**state) for kind, state in states.items()})
        if (state := self.ledger.state("drift")) is not None:
            if anew or not self.drift.follow(self.ledger.seen(anew=False), state):
                self.drift.follow(self.ledger.seen(), state, anew=True)

    def _watch(self, after: Mapping[str, Monitor]) -> None:
        before, self.monitors = self.monitors, dict(after)
        for kind, monitor in after.items():
            counts = {"of": kind} | {name: getattr(monitor, name) for name in _COUNTS}
            if monitor.alarm and not before[kind].alarm:
                self._log.event("alarm", **counts, log_wealth=round(monitor.log_wealth, 3))
            if monitor.slipping and not before[kind].slipping:
                self._log.event("slipping", **counts, log_slip=round(monitor.log_slip, 3))

    def _log_unkept(self, error: DatabaseError) -> None:
        self._metrics.unkept.inc()
        self._log.failure(error, at="state", reason=str(error))  # it quotes no text of a request
