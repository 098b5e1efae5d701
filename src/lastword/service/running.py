"""The state of a running application: its settings, log, metrics and traffic."""

import time

from lastword.service.log import Log
from lastword.service.metrics import Metrics
from lastword.service.settings import Settings
from lastword.service.traffic import Traffic


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
        self.traffic = Traffic(self.metrics)
        self.begin = int(time.time())

    def announce(self, address: str) -> None:
        """Log what is served at this address."""

    def close(self) -> None:
        """Finish waiting work and end the threads."""
