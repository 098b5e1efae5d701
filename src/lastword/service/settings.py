"""The settings of a service."""

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lastword.errors import InputError

COUNTS = (
    *("batch_items", "batch_limit", "requests", "body_bytes", "candidates"),
    *("characters", "tokens", "connections", "feedback_items"),
)
LIMITS = (*COUNTS, "header_seconds")  # the keys of --limits


@dataclass(frozen=True)
class Settings:
    """Limits and behaviour of a service.

    Attributes:
        host: Address to listen on; other than loopback needs a token.
        port: Port; 0 takes a free one, which the log names.
        token: Bearer token that clients send.
        label_token: Separate token for /v1/feedback, so that clients who ask cannot label.
        shadow: Return the model's answers, and log what correction would change.
        batch_items: Maximum number of waiting items that are computed together.
        requests: Maximum number of requests in progress. Further requests get status 429.
        deadline_seconds: Time limit per request, counted from its first byte.
        body_bytes: Maximum size of a body.
        batch_limit: Maximum number of items in a batch.
        candidates: Maximum number of candidates of an item.
        characters: Maximum number of characters of an item: its prompt once per candidate, and
            the candidates.
        tokens: Maximum number of tokens of an item, prompt and candidates together.
        connections: Maximum number of open connections; others wait.
        header_seconds: Time limit for the headers.
        client_header: Header in which the proxy names its client, so that clients take turns. The
            proxy must overwrite it. By default each connection is a client.
        drain_seconds: Time for which new requests are refused before sockets close.
        on_alarm: Response to an alarm of the monitor: a log line, or `shadow` from then on.
        feedback_items: Maximum number of answers that are remembered for their labels.
        state: File that keeps the monitor, drift and remembered answers over a restart, or the
            postgresql:// address of a database that several services share.
        keep_texts: Keep the texts and options of answers in the state, for `lastword feedback`.
        questions: Questions file. It is checked, and the probes that it names are loaded, at start.
        lenient: Let the model answer a question that is almost a served one, which is refused
            otherwise if a probe or a certificate is served.
        template: Template of decisions: decide/plain, decide/listed, decide/chat or a Jinja file.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    label_token: str | None = None
    shadow: bool = False
    batch_items: int = 64
    requests: int = 256
    deadline_seconds: float = 30.0
    body_bytes: int = 2**20
    batch_limit: int = 256
    candidates: int = 64
    characters: int = 2**19  # half a second of tokenising
    tokens: int = 16_384
    connections: int = 4096
    header_seconds: float = 10.0
    client_header: str | None = None
    drain_seconds: float = 0.5
    on_alarm: Literal["log", "shadow"] = "log"
    feedback_items: int = 100_000
    state: str | Path | None = None
    keep_texts: bool = False
    questions: Path | None = None
    lenient: bool = False
    template: str | None = None

    def __post_init__(self) -> None:
        """Refuse an unprotected address, and limits that no request meets."""
        if self.keep_texts and self.state is None:
            raise InputError("--keep-texts needs a file to keep them in: give --state")
        tokens = [token.strip() for token in (self.token, self.label_token) if token is not None]
        if any(not token or not token.isascii() or not token.isprintable() for token in tokens):
            raise InputError(
                "a token is one line of ASCII, because clients send it in a header; give one, or "
                "none at all on loopback"
            )
        if len(tokens) > len({*tokens}):
            raise InputError(
                "--label-token equals --token, so clients that ask could also label: choose another"
            )
        if self.token is None and not self.loopback:
            raise InputError(
                f"{self.host} is not loopback: set --token or LASTWORD_TOKEN, or listen on "
                "127.0.0.1"
            )
        for name in COUNTS:
            if (count := getattr(self, name)) < 1:
                raise InputError(f"{name} is at least 1, not {count}")
        spans = (self.deadline_seconds, self.header_seconds)
        positive = all(0 < seconds < math.inf for seconds in spans)
        if not positive or not 0 <= self.drain_seconds < math.inf:
            raise InputError("deadlines are positive numbers of seconds")

    @property
    def loopback(self) -> bool:
        """True if only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
