"""Probe: a fit with its question, template and model, and its file.

The file is in safetensors format: the fit's arrays, and one JSON text with everything else. A file
is untrusted input: nothing in it is executed, and every value is checked.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from lastword.errors import InputError, one_line
from lastword.files.strict_json import from_json, to_json
from lastword.files.writing import open_whole
from lastword.probes.stacked import StackedProbe
from lastword.probes.state import OWN, Pooling, StateProbe
from lastword.probes.trajectory import TrajectoryProbe
from lastword.probes.unlike import Likeness
from lastword.text.question import Question, question_digest, question_from, question_to
from lastword.trust.calibration import TEMPERATURES
from lastword.trust.groups import SEED, normal
from lastword.trust.subject import CertifiedProbe, Subject

SCHEMA = 2
SUFFIX = ".probe.safetensors"
MOST_BYTES = 2**28  # limit of a file; 1,000 texts of width 16,384 with 255 classes take half

_STATE = ("mean", "scale", "weights", "intercept")
_LIKENESS = ("directions", "gains", "distances")
_MOST, _LEAST = 1e12, 1e-13  # limits of the numbers in a file; those of real fits are within
_FAR = 1e60  # limit of squared distances, which are large if a variance is nearly 0
_OVER = ("scale", "weights")  # arrays of a trajectory probe and of a stacked probe's weights

# Exceptions that a malicious or damaged file may cause.
_NONSENSE = (
    *(SafetensorError, KeyError, TypeError, ValueError, AttributeError, IndexError),
    *(RecursionError, OverflowError),
)

Fit = StateProbe | StackedProbe | TrajectoryProbe


@dataclass(frozen=True, eq=False)
class Probe:
    """A classifier fitted to one question.

    Attributes:
        question: The question that it answers; a trajectory probe accepts other options.
        template: Name of its prompt template (`Questionnaire.template_name`).
        subject: The model that it was fitted with.
        labels: Number of labels that it was fitted to.
        left_out: Options without a label, which it never answers.
        seed: Seed of the split of its labels; None if it was fitted to all of them.
        figures: Measurements of it, by name.
        threshold: Lead over the model's answer, on the ridge's scale, that the best option needs
            to replace it (see `threshold`); None if the probe always answers.
        reader: The sentence encoder whose states it reads; None if it reads only the model's.
        trained: Digests of the texts that it was fitted to (`trained_digest`).
    """

    question: Question
    template: str
    subject: Subject
    fit: Fit
    labels: int
    left_out: tuple[str, ...] = ()
    seed: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    threshold: float | None = None
    reader: Subject | None = None
    trained: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse classes that are not options of the question."""
        if self.state is not None:
            texts = {option.text for option in self.question.options}
            if strange := [name for name in self.state.classes if name not in texts]:
                raise InputError(f"its class {strange[0]!r} is no option of its question")
        if (self.reader is None) == bool(self.state is not None and self.state.reader):
            raise InputError("it does not say which encoder it reads")

    @property
    def name(self) -> str:
        """The name of its fit: `probe@19`, `probe@19+model` or `probe@trajectory`."""
        return self.fit.name

    @property
    def state(self) -> StateProbe | None:
        """The state probe, possibly inside a stacked one; None for a trajectory probe."""
        if isinstance(self.fit, StackedProbe):
            return self.fit.state
        return self.fit if isinstance(self.fit, StateProbe) else None

    @property
    def needs_model(self) -> bool:
        """True if it needs a language model; False if it reads only an encoder."""
        alone = isinstance(self.fit, StateProbe) and self.fit.pooling == OWN
        return not alone or self.threshold is not None

    @property
    def digest(self) -> str:
        """A digest of the whole probe."""
        return hashlib.sha256(_save(*self._content())).hexdigest()

    def certified(self, fraction: float) -> CertifiedProbe:
        """Return its description in a certificate.

        Args:
            fraction: Share of the labelled groups that it was fitted to.
        """
        state, question = self.state, question_digest(self.question)
        depth, pooling = (None, None) if state is None else (state.depth, state.pooling)
        return CertifiedProbe(self.digest, question, SEED, fraction, depth, pooling)

    def answers(self, question: Question) -> bool:
        """Return True if it answers this question; options may be in any order."""
        if isinstance(self.fit, TrajectoryProbe):
            same = type(question) is type(self.question)
            return same and question.instructions == self.question.instructions
        if question.instructions != self.question.instructions:
            return False  # cheaper than a digest: many questions are compared with many probes
        return question_digest(question) == question_digest(self.question)

    def was_fitted_to(self, text: str) -> bool:
        """Return True if it was fitted to this text, or to a copy of it."""
        return bool(self.trained) and trained_digest(text) in self.trained

    def check(self, subject: Subject) -> None:
        """Check that a model, its chat template and its precision are those of the fit.

        Raises:
            InputError: They differ; the message has the differences.
        """
        if self.needs_model:
            _refuse_other(self.subject, subject, "model")

    def check_reader(self, subject: Subject) -> None:
        """Check that a sentence encoder is that of the fit.

        Raises:
            InputError: They differ; the message has the differences.
        """
        assert self.reader is not None
        _refuse_other(self.reader, subject, "encoder")

    def check_template(self, template: str) -> None:
        """Check that a prompt template is that of the fit.

        Raises:
            InputError: They differ; the message has both names.
        """
        if self.needs_model and template != self.template:
            raise _refusal("prompt template", self.template, template)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        facts, arrays = self._content()
        return _save(facts | {"digest": file_digest(facts, arrays)}, arrays)

    def _content(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        facts: dict[str, Any] = {
            "schema": SCHEMA,
            "question": question_to(self.question),
            "template": self.template,
            "subject": _without_theta(self.subject),
            "labels": self.labels,
            "left_out": list(self.left_out),
            "seed": self.seed,
            "figures": dict(self.figures),
            "trained": sorted(self.trained),
        }
        if self.threshold is not None:
            facts |= {"threshold": self.threshold}
        arrays: dict[str, np.ndarray] = {}
        if (state := self.state) is not None:
            likeness = state.likeness
            arrays |= {name: getattr(state, name) for name in _STATE}
            arrays |= {name: getattr(likeness, name) for name in _LIKENESS}
            facts |= {"classes": list(state.classes), "depth": state.depth}
            facts |= {"pooling": state.pooling, "temperature": state.temperature}
            facts |= {"floor": likeness.floor}
        if self.reader is not None and state is not None:
            facts |= {"reader": _without_theta(self.reader), "beside": state.beside}
        if not isinstance(self.fit, StateProbe):
            over = self.fit.over if isinstance(self.fit, StackedProbe) else self.fit
            arrays |= {f"over.{name}": getattr(over, name) for name in _OVER}
            facts |= {"over_temperature": over.temperature}
        return facts, arrays

    def write(self, path: str | Path) -> None:
        """Write the file atomically.

        Raises:
            OSError: The file cannot be written.
        """
        with open_whole(Path(path)) as file:
            file.write(self.to_bytes())

    @classmethod
    def read(cls, path: str | Path) -> "Probe":
        """Read a probe's file.

        Raises:
            InputError: The file is missing, damaged, too large, or not a probe.
        """
        try:
            if Path(path).stat().st_size > MOST_BYTES:
                raise InputError(f"it is larger than {MOST_BYTES >> 20} MiB")
            return cls.from_bytes(Path(path).read_bytes())
        except (OSError, ValueError, InputError) as error:  # ValueError: a path with a NUL byte
            why = getattr(error, "strerror", None) or error
            raise InputError(f"cannot read a probe from {path}: {why}") from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder with the probe and a model card; OSError if that fails."""
        from lastword.probes.hub import save_folder  # it imports huggingface_hub

        save_folder(Path(folder), self.to_bytes(), self._facts)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None) -> str:
        """Upload the probe and a model card to `OWNER/NAME`, and return the commit's address.

        Raises:
            InputError: The hub refuses the upload, or cannot be reached.
        """
        from lastword.probes.hub import publish

        return publish(repo_id, self.to_bytes(), self._facts, private)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None) -> "Probe":
        """Read a probe from a folder of `save_pretrained`, or `OWNER/NAME` from the hub.

        Raises:
            CheckpointError: The hub has no probe with this name, or cannot be reached.
            InputError: The file is missing, damaged, too large, or not a probe.
        """
        from lastword.probes.hub import find_file

        return cls.read(find_file(str(name), revision))

    @property
    def _facts(self) -> dict[str, str]:
        options = self.question.options if self.state is None else self.state.classes
        texts = [one if isinstance(one, str) else one.text for one in options]
        return {
            "probe": self.name,
            "question": " ".join(self.question.instructions.split()) or "none",
            "options": ", ".join(texts),
            "model": (self.reader or self.subject).model,
            "labels": str(self.labels),
        }

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Probe":
        """Return the probe in a file's bytes.

        Raises:
            InputError: The bytes are not a valid probe.
        """
        try:
            arrays = load(raw)
            length = int.from_bytes(raw[:8], "little")
            header = json.loads(raw[8 : 8 + length])
            facts = from_json(header["__metadata__"]["lastword"])
            if facts.pop("digest", None) != file_digest(facts, arrays):
                raise InputError(
                    "its contents are not those of its digest: copy it again, or fit a new one"
                )
            return _probe(facts, arrays)
        except _NONSENSE as error:
            raise InputError(f"this is not a probe file: {one_line(error)}") from error


def trained_digest(text: str) -> str:
    """Return a digest of a text, which is equal for copies (`trust.groups.normal`)."""
    return hashlib.sha256(normal(text).encode()).hexdigest()[:16]


def _save(facts: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    return save(arrays, {"lastword": to_json(facts)})


def file_digest(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of a file's content, which the file stores too."""
    digest = hashlib.sha256(to_json(facts).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


def _probe(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Probe:
    """Build a probe from the content of a file."""
    if facts["schema"] != SCHEMA:
        raise InputError(f"its schema is {facts['schema']!r}, expected {SCHEMA}: fit a new one")
    for name, array in arrays.items():
        most = _FAR if name in ("gains", "distances") else _MOST
        if array.dtype.kind != "f" or not (np.abs(array) <= most).all():
            raise InputError(f"its {name} are not all numbers of at most {most:g}")
    labels, seed = (facts[name] for name in ("labels", "seed"))
    # Version 0.2 wrote probes with 0 labels.
    if type(labels) is not int or not 1 <= labels <= _MOST:
        raise InputError(f"it was fitted to {labels!r:.40} labels: fit one with `lastword try`")
    if seed is not None and (type(seed) is not int or seed < 0):
        raise InputError(f"its seed is {seed!r:.40}, expected a whole number from 0")
    threshold = facts.get("threshold")
    if threshold is not None and not (_is_number(threshold) and threshold >= 0):
        raise InputError(f"its threshold is {threshold!r}, expected one from 0")
    figures = facts["figures"]
    if not isinstance(facts["left_out"], list):
        raise InputError("its options without a label are not a list")
    if not isinstance(figures, Mapping) or not all(map(_is_number, figures.values())):
        raise InputError("its figures are not numbers by name")
    return Probe(
        question=question_from(facts["question"], "answer"),
        template=str(facts["template"]),
        subject=_subject(facts["subject"]),
        fit=_fit(facts, arrays),
        labels=labels,
        left_out=tuple(map(str, facts["left_out"])),
        seed=seed,
        figures={name: float(value) for name, value in figures.items()},
        threshold=None if threshold is None else float(threshold),
        reader=_subject(facts["reader"]) if "reader" in facts else None,
        trained=frozenset(map(str, facts["trained"])),
    )


def _subject(table: Mapping[str, Any]) -> Subject:
    return Subject(str(table["model"]), dict(table["marks"]), str(table["chat"]))


def _without_theta(subject: Subject) -> dict[str, Any]:
    return {name: value for name, value in asdict(subject).items() if name != "theta"}


def _fit(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Fit:
    if "classes" not in facts:
        return _over_from(facts, arrays)
    state = _state(facts, arrays)
    return StackedProbe(state, _over_from(facts, arrays)) if "over.scale" in arrays else state


def _state(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> StateProbe:
    classes, depth, pooling = tuple(facts["classes"]), facts["depth"], facts["pooling"]
    width, count = arrays["weights"].shape
    directions, texts = len(arrays["directions"]), len(arrays["distances"])
    _require_shapes(
        arrays,
        mean=(width,),
        scale=(width,),
        weights=(width, len(classes)),
        intercept=(len(classes),),
        directions=(directions, width),
        gains=(directions,),
        distances=(texts,),
    )
    texts_only = all(isinstance(name, str) for name in classes)
    if not texts_only or count < 2 or len(set(classes)) < count or pooling not in get_args(Pooling):
        raise InputError("its classes or its pooling are invalid")
    reader = reader_name(_subject(facts["reader"]).model) if "reader" in facts else ""
    beside = facts.get("beside")
    depths = [depth] if beside is None else [depth, beside]
    valid = all(type(d) is int and d >= 0 for d in depths)
    if not valid or not (arrays["scale"] >= _LEAST).all():
        raise InputError("its depth or its scale is invalid")
    if bool(reader) != (pooling == OWN or beside is not None):
        raise InputError("its encoder is invalid")
    if not _is_number(facts["floor"]) or not _LEAST <= facts["floor"] <= _MOST:
        raise InputError(f"its floor is {facts['floor']!r:.40}, expected a number above 0")
    if not texts or (np.diff(arrays["distances"]) < 0).any():
        raise InputError("its distances are not in order")
    likeness = Likeness(**{n: arrays[n] for n in _LIKENESS}, floor=float(facts["floor"]))
    return StateProbe(
        classes,
        depth,
        pooling,
        **{name: arrays[name] for name in _STATE},
        temperature=_temperature(facts["temperature"]),
        likeness=likeness,
        reader=reader,
        beside=beside,
    )


def _over_from(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> TrajectoryProbe:
    scale, weights = (arrays[f"over.{name}"] for name in _OVER)
    if scale.shape != (weights.size,) or not (scale >= _LEAST).all():
        raise InputError("its scale is invalid")
    return TrajectoryProbe(scale, weights, _temperature(facts["over_temperature"]))


def _temperature(value: Any) -> float:
    low, high = TEMPERATURES
    if not _is_number(value) or not low <= value <= high:
        raise InputError(f"its temperature is {value!r:.40}, expected one of {low:g} to {high:g}")
    return float(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= _FAR


def reader_name(model: str) -> str:
    """Return an encoder's name without its owner, as in a probe's name."""
    return model.rsplit("/", 1)[-1]


def _refuse_other(fitted_on: Subject, used: Subject, kind: str) -> None:
    for name, mine, other in fitted_on.differences(used):
        raise _refusal(kind if name == "model" else name, mine, other)


def _refusal(what: str, mine: str, other: str) -> InputError:
    return InputError(
        f"the probe was fitted with the {what} {mine!r:.80}, and this is {other!r:.80}: fit one "
        "anew, by `lastword try`"
    )


def _require_shapes(arrays: Mapping[str, np.ndarray], **shapes: tuple[int, ...]) -> None:
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise InputError(f"its {name} are {arrays[name].shape}, expected {shape}")
