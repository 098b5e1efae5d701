"""Running: one decider with its settings, its log, its metrics and its traffic."""

import time
from dataclasses import asdict

from lastword.decide.decider import Decider
from lastword.decide.questions_file import read_questions
from lastword.decide.templates import template_of
from lastword.service.corrector import Corrector
from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.settings import Settings
from lastword.service.traffic import Traffic
from lastword.version import __version__


class Running:
    """The parts around an application that server and guard need; its `app.state.service`.

    Attributes:
        begin: When it began, in seconds since the epoch.
        ended: False if a thread was still running after `close`.
    """

    ended = True
    name = "lastword"

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.log = log or Log(prompts=settings.log_prompts)
        self.traffic = Traffic(self.metrics, settings.flight_bytes)
        self.begin = int(time.time())

    def announce(self) -> None:
        """Say in the log what is served."""

    def turn_away(self) -> None:
        """Refuse the work that still waits when the service stops."""

    def close(self) -> None:
        """Finish what waits and end the threads."""


class Service(Running):
    """One decider with everything around it.

    Raises:
        InputError: Questions or a template that cannot be read or asked.
    """

    def __init__(self, decider: Decider, settings: Settings, log: Log | None = None) -> None:
        super().__init__(settings, log)
        if settings.template is not None:
            template_of(settings.template)  # refused now, and not at a request
            decider.template = settings.template
        if settings.questions is not None:
            questions = read_questions(settings.questions)
            decider.prepare(questions, warn=False)  # refused now too
            decider.serve(questions)
        self.corrector = Corrector(decider, settings, self.metrics, self.log)
        self.name = self.corrector.name
        self.metrics.served.labels(__version__, self.name).set(1)
        self.metrics.dropped_lines.set_function(lambda: self.log.dropped)
        model = self.corrector.model
        self.metrics.oldest.set_function(model.oldest_seconds)
        self.metrics.waiting_items.set_function(lambda: model.waiting)

    def announce(self) -> None:
        """Say in the log under what answers are given."""
        certificate = self.corrector.decider.certificate
        if certificate is None:
            decider = self.corrector.decider.method
            what = f"every override by {decider} is allowed, with no guarantee"
            if decider == "base":
                what = (
                    "No certificate loaded: decisions use the model's answers. /v1/correct applies "
                    "corrections without a guarantee."
                )
            self.log.event("uncertified", told=what)
        else:
            policy, date = asdict(certificate.policy), certificate.date
            self.log.event("certified", **policy, date=date)
            if self.settings.token is not None and self.settings.label_token is None:
                what = "whoever may ask may label, and raise the alarm: give --label-token"
                self.log.event("labels", told=what)

    def turn_away(self) -> None:
        """Refuse the items that still wait."""
        self.corrector.model.turn_away()

    def close(self) -> None:
        """Finish what waits and end the threads."""
        self.ended = self.corrector.close()
