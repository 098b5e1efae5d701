"""What a service is told once, when it starts."""

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lastword.errors import InputError

_COUNTS = (
    *("batch_items", "batch_limit", "requests", "body_bytes", "flight_bytes", "candidates"),
    *("characters", "tokens", "connections", "header_bytes", "feedback_items", "entries"),
)


@dataclass(frozen=True)
class Settings:
    """Limits and manners of a service."""

    host: Annotated[str, "Address to listen on; beyond loopback needs a token."] = "127.0.0.1"
    port: Annotated[int, "Port; 0 takes a free one, named in the log."] = 8000
    token: Annotated[str | None, "What clients send as a Bearer token."] = None
    label_token: Annotated[
        str | None, "What /v1/feedback takes in its place, so that who asks cannot label."
    ] = None
    shadow: Annotated[bool, "Answer with the base; log what correction would change."] = False
    batch_items: Annotated[int, "Most waiting items computed together; 1 is none."] = 64
    requests: Annotated[int, "Most requests in hand; one more is refused with 429."] = 256
    deadline_seconds: Annotated[
        float,
        "Seconds from a request's first byte to its answer; of a batch, from when an item is "
        "queued.",
    ] = 30.0
    body_bytes: Annotated[int, "Largest body in bytes."] = 2**20
    flight_bytes: Annotated[
        int, "Most bytes of all bodies in hand; one that exceeds them is refused with 429."
    ] = 2**26
    entries: Annotated[int, "Most of one body: entries of its lists and objects, however deep."] = (
        65_536
    )
    batch_limit: Annotated[int, "Most items of one batch."] = 4096
    candidates: Annotated[int, "Most of one item."] = 64
    characters: Annotated[
        int, "Most of one item: its prompt once for each candidate, and the candidates."
    ] = 2**21
    tokens: Annotated[int, "Most of one item, prompt and candidates together."] = 16_384
    connections: Annotated[int, "Most open at a time; others wait to be taken."] = 4096
    header_bytes: Annotated[int, "Most of one request's headers."] = 65_536
    header_seconds: Annotated[float, "How long they may take to arrive."] = 10.0
    client_header: Annotated[
        str | None,
        "Header in which the proxy in front names its client, for whose turn it is; what clients "
        "send under that name it has to replace. Without it each connection is a client.",
    ] = None
    drain_seconds: Annotated[
        float, "How long new requests are turned away politely before sockets close."
    ] = 0.5
    on_alarm: Annotated[
        Literal["log", "shadow"],
        "What an alarm of the monitor does: a line in the log, or `shadow` from then on.",
    ] = "log"
    feedback_items: Annotated[int, "Most answers that are remembered for their labels."] = 100_000
    feedback_seconds: Annotated[float, "How long an answer is remembered."] = 604_800.0  # a week
    state: Annotated[
        str | Path | None,
        "File that keeps monitor, drift and remembered answers over a restart, or postgresql:// "
        "address of a database that does so for several services; a file may also keep the running "
        "means of --correction batch-calibrated.",
    ] = None
    keep_texts: Annotated[
        bool,
        "Keep in --state the texts and options of what is answered, for `lastword labels`.",
    ] = False
    explorer: Annotated[bool, "Show the explorer's page at /."] = False
    log_prompts: Annotated[bool, "Write prompts and candidates into the log."] = False
    questions: Annotated[
        Path | None,
        "Questions file: it is checked, and the probes that it names are loaded, at start.",
    ] = None
    template: Annotated[
        str | None, "Of decisions: decide/plain, decide/listed, decide/chat, or a file of Jinja."
    ] = None

    def __post_init__(self) -> None:
        """Refuse an open door and limits that let nothing through."""
        if self.keep_texts and self.state is None:
            raise InputError("--keep-texts keeps them in a file: name it by --state")
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
