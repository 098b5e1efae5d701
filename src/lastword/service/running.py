"""The state of a running service: its decider, settings, log, metrics and traffic."""

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
    """The state of an application that server and guard need, as `app.state.service`.

    Attributes:
        begin: Time of the start, in seconds since the epoch.
        ended: False if a thread was still running after `close`.
        name: Name of the model.
    """

    ended = True
    name = "lastword"

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.log = log or Log(prompts=settings.log_prompts)
        self.traffic = Traffic(self.metrics, settings.flight_bytes)
        self.begin = int(time.time())

    def announce(self, address: str) -> None:
        """Log what is served at this address."""

    def turn_away(self) -> None:
        """Refuse waiting work when the service stops."""

    def close(self) -> None:
        """Finish waiting work and end the threads."""


class Service(Running):
    """The state of a service that answers with one decider.

    Raises:
        InputError: The questions or the template cannot be used.
    """

    def __init__(self, decider: Decider, settings: Settings, log: Log | None = None) -> None:
        super().__init__(settings, log)
        if settings.template is not None:
            template_of(settings.template)  # raises at start, not at the first request
            decider.template = settings.template
        if settings.questions is not None:
            questions = read_questions(settings.questions)
            decider.prepare(questions, warn=False)  # raises at start too
            decider.serve(questions)
        self.corrector = Corrector(decider, settings, self.metrics, self.log)
        self.name = self.corrector.name
        self.metrics.served.labels(__version__, self.name).set(1)
        self.metrics.dropped_lines.set_function(lambda: self.log.dropped)
        model = self.corrector.model
        self.metrics.oldest.set_function(model.oldest_seconds)
        self.metrics.waiting_items.set_function(lambda: model.waiting)

    def announce(self, address: str) -> None:
        """Log the certificate, or that there is none."""
        certificate = self.corrector.decider.certificate
        if certificate is None:
            method = self.corrector.decider.method
            what = f"every override by {method} is allowed, with no guarantee"
            if method == "base":
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
        """Refuse waiting items."""
        self.corrector.model.turn_away()

    def close(self) -> None:
        """Finish waiting work and end the threads."""
        self.ended = self.corrector.close()
