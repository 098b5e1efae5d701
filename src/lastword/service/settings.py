"""What a service is told once, when it starts."""

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lastword.errors import InputError

_COUNTS = (
    *("batch_items", "batch_limit", "queue_items", "queue_asks", "body_bytes", "candidates"),
    *("characters", "tokens", "connections", "header_bytes", "feedback_items", "feedback_minute"),
    *("queue_characters", "entries"),
)


@dataclass(frozen=True)
class Settings:
    """Limits and manners of a service.

    Attributes:
        host: Address to listen on; beyond loopback needs a token.
        port: Port; 0 takes a free one, named in the log.
        probe_port: Port for probes alone, in a thread of their own; with the others if not given.
        token: What clients send as a Bearer token.
        label_token: What /v1/feedback takes in its place, so that who asks cannot label.
        shadow: Answer with the base; log what correction would change.
        batch_items: Most waiting items computed together; 1 is none.
        queue_items: Most items that wait; one more is refused with 429.
        queue_asks: Most questions that wait; they and items take turns with the model.
        queue_characters: Most of the long items that wait, as `characters` counts them.
        deadline_seconds: Seconds from a request to its answer.
        body_bytes: Largest body in bytes.
        entries: Most of one body: entries of its lists and objects, however deep.
        batch_limit: Most items of one batch.
        candidates: Most of one item.
        characters: Most of one item: its prompt once for each candidate, and the candidates.
        tokens: Most of one item, prompt and candidates together; of a question, with its answer
            and once for each sample.
        connections: Most open at a time; one more is told so and closed.
        header_bytes: Most of one request's headers.
        header_seconds: How long they may take to arrive.
        drain_seconds: How long new requests are turned away politely before sockets close.
        on_alarm: What an alarm of the monitor does: a line in the log, or `shadow` from then on.
        feedback_items: Most answers that are remembered for their labels.
        feedback_seconds: How long an answer is remembered.
        feedback_minute: Most labels of one address in a minute.
        state: File that keeps monitor, drift and remembered answers over a restart, or the running
            means of --correction batch-calibrated.
        log_prompts: Write prompts and candidates into the log.
        questions: File of questions that are made ready and checked for flips before the first
            request; /v1/models tells what came out.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    probe_port: int | None = None
    token: str | None = None
    label_token: str | None = None
    shadow: bool = False
    batch_items: int = 64
    queue_items: int = 256
    queue_asks: int = 16
    queue_characters: int = 2**23
    deadline_seconds: float = 30.0
    body_bytes: int = 2**20
    entries: int = 65_536
    batch_limit: int = 4096
    candidates: int = 64
    characters: int = 2**21
    tokens: int = 16_384
    connections: int = 512
    header_bytes: int = 65_536
    header_seconds: float = 10.0
    drain_seconds: float = 0.5
    on_alarm: Literal["log", "shadow"] = "log"
    feedback_items: int = 100_000
    feedback_seconds: float = 604_800.0  # a week
    feedback_minute: int = 600
    state: Path | None = None
    log_prompts: bool = False
    questions: Path | None = None

    def __post_init__(self) -> None:
        """Refuse an open door and limits that let nothing through."""
        tokens = [token.strip() for token in (self.token, self.label_token) if token is not None]
        for token in tokens:
            _require_sendable(token)
        if len(tokens) > len({*tokens}):
            raise InputError("--label-token is --token: who asks could label; choose another")
        if self.token is None and not self.loopback:
            raise InputError(
                f"{self.host} is not loopback: set --token or LASTWORD_TOKEN, or listen on "
                "127.0.0.1"
            )
        for name in _COUNTS:
            if getattr(self, name) < 1:
                raise InputError(f"{name} is at least 1, not {getattr(self, name)}")
        spans = (self.deadline_seconds, self.header_seconds, self.feedback_seconds)
        positive = all(0 < seconds < math.inf for seconds in spans)
        if not positive or not 0 <= self.drain_seconds < math.inf:
            raise InputError("deadlines are positive numbers of seconds")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def _require_sendable(token: str) -> None:
    """Refuse a token that no client can send."""
    if not token:
        raise InputError("the token is empty; give one, or none at all on loopback")
    if not (token.isascii() and token.isprintable()):
        raise InputError("the token is one line of ASCII: clients send it in a header")
