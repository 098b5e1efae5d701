"""Subject: what a certificate is for: a model, a probe of it, or the predictions of any system."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator

from lastword.model.weights.identity import model_name, text_digest
from lastword.rule.theta import Theta

# Entries of `run.json` that identify a model from the hub.
_MARKS = ("revision", "quantisation", "dtype", "head_dtype")


def _theta(value: Any) -> Theta:
    # Its validators take plain values, which a strict reader does not pass on.
    return value if isinstance(value, Theta) else Theta.from_dict(value)


@dataclass(frozen=True)
class _Digested:
    @property
    def digest(self) -> str:
        """A digest of all fields."""
        return text_digest(json.dumps(asdict(self), sort_keys=True))


@dataclass(frozen=True)
class Subject(_Digested):
    """The model that a certificate is for.

    Attributes:
        model: The model's name.
        marks: Properties that distinguish it from other models with this name: digests of weights,
            configuration, tokenizer and the base of an adapter, or the hub's commit; data types of
            weights and head, quantisation.
        chat: The chat template and system message around every prompt; empty if there is none.
        theta: Constants and switches.
    """

    model: str
    marks: Mapping[str, str] = field(default_factory=dict)
    chat: str = ""
    theta: Annotated[Theta, BeforeValidator(_theta)] = Theta()

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> "Subject":
        """Return the subject that `run.json` records, or a tracer with its digests describes."""
        source, chat = described["model"], described.get("chat")
        marks = dict(described.get("weights") or {})
        marks |= {name.replace("_", " "): described.get(name) for name in _MARKS}
        return cls(
            model=model_name(source),
            marks={name: str(mark) for name, mark in marks.items() if mark},
            chat="" if chat is None else json.dumps(chat, ensure_ascii=False, sort_keys=True),
            theta=Theta.from_dict(described["theta"]),
        )

    def differences(self, other: "Subject") -> list[tuple[str, str, str]]:
        """Return each property in which another model differs: its name and both values.

        A mark that one of them lacks is `none`. Theta is left out.
        """
        marks = dict.fromkeys([*self.marks, *other.marks])
        pairs = [
            ("model", self.model, other.model),
            *((name, self.marks.get(name), other.marks.get(name)) for name in marks),
            ("chat template", self.chat, other.chat),
        ]
        return [(name, a or "none", b or "none") for name, a, b in pairs if a != b]


@dataclass(frozen=True)
class Predictions(_Digested):
    """A system that is known by its predictions only; no model is identified.

    `table` is the digest of the labelled table, and `answerer` that of the answerer of all its
    labelled rows, as `lastword decide` writes it.
    """

    name: str
    table: str
    columns: Mapping[str, str] = field(default_factory=dict)
    answerer: str = ""


@dataclass(frozen=True)
class CertifiedProbe:
    """The probe that a certificate allows: digests of its file and question, and its states.

    It was fitted to a fraction of the groups of labels, drawn by the seed; the others tested it.
    The depth is None for a trajectory probe, which reads all.
    """

    digest: str
    question: str
    seed: int
    fraction: float
    depth: int | None = None
    pooling: str | None = None
