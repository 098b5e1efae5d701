"""Probe: a fit with its question, template and model, and its file.

The file is in safetensors format: the fit's arrays, and one JSON text with everything else. A file
is untrusted input: nothing in it is executed, and every value is checked.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, PlainSerializer, PlainValidator, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from lastword.errors import InputError, one_line
from lastword.files.fields import first_fault
from lastword.files.strict_json import to_json
from lastword.files.writing import open_whole
from lastword.probes.arrays import MOST
from lastword.probes.state import LinearProbe
from lastword.probes.trajectory import TrajectoryProbe
from lastword.text.question import Question, question_digest, question_from, question_to
from lastword.trust.groups import SEED, normal
from lastword.trust.subject import CertifiedProbe, Subject

SCHEMA = "3"
SUFFIX = ".probe.safetensors"
HUB_FILE = "probe.safetensors"  # in a folder of the hub
MOST_BYTES = 2**28  # limit of a file; 1,000 texts of width 16,384 with 255 classes take half

# Exceptions that a malicious or damaged file may cause.
_NONSENSE = (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
# Theta has no effect on a probe.
_LEFT_OUT = {"subject": {"theta"}, "encoder": {"theta"}}

Fit = LinearProbe | TrajectoryProbe


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
        threshold: Lead over the model's answer, on the ridge's scale, that the best option needs
            to replace it (see `threshold`); None if the probe always answers.
        encoder: The sentence encoder whose states it reads; None if it reads only the model's.
        trained: Digests of the texts that it was fitted to (`trained_digest`).
    """

    question: Annotated[
        Question,
        PlainValidator(lambda value: question_from(value, "answer")),
        PlainSerializer(question_to),
    ]
    template: str
    subject: Subject
    fit: Annotated[Fit, Field(discriminator="kind")]
    labels: Annotated[int, Field(ge=1)]
    left_out: tuple[str, ...] = ()
    seed: Annotated[int, Field(ge=0)] | None = None
    threshold: Annotated[float, Field(ge=0, le=MOST)] | None = None
    encoder: Subject | None = None
    trained: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Refuse classes that are no options of the question, and an encoder that is not read."""
        linear = self.linear
        if linear is not None:
            texts = {option.text for option in self.question.options}
            if strange := [name for name in linear.classes if name not in texts]:
                raise InputError(f"its class {strange[0]!r} is no option of its question")
        read = "" if linear is None else linear.encoder
        if read != ("" if self.encoder is None else encoder_name(self.encoder.model)):
            raise InputError("it does not say which encoder it reads")

    @property
    def name(self) -> str:
        """The name of its fit: `probe@19`, `probe@19+model` or `probe@trajectory`."""
        return self.fit.name

    @property
    def linear(self) -> LinearProbe | None:
        """The fit, if it is a linear probe; None for a trajectory probe."""
        return self.fit if isinstance(self.fit, LinearProbe) else None

    @property
    def source(self) -> Subject:
        """The encoder that it reads, or else the model."""
        return self.encoder or self.subject

    @property
    def needs_model(self) -> bool:
        """True if it needs a language model; False if it reads only an encoder."""
        return self.linear is None or self.linear.reads_model or self.threshold is not None

    @property
    def digest(self) -> str:
        """A digest of the whole probe, which its file stores too."""
        return file_digest(*self._content())

    def certified(self, fraction: float) -> CertifiedProbe:
        """Return its description in a certificate; it was fitted to this share of the groups."""
        question = question_digest(self.question)
        block = None if self.linear is None else self.linear.blocks[0]
        layer, pooling = (None, None) if block is None else (block.layer, block.pooling)
        return CertifiedProbe(self.digest, question, SEED, fraction, layer, pooling)

    def answers(self, question: Question) -> bool:
        """Return True if it answers this question; options may be in any order."""
        if question.instructions != self.question.instructions:
            return False  # cheaper than a digest: many questions are compared with many probes
        if self.linear is None:
            return type(question) is type(self.question)
        return question_digest(question) == question_digest(self.question)

    def was_fitted_to(self, text: str) -> bool:
        """Return True if it was fitted to this text, or to a copy of it."""
        return bool(self.trained) and trained_digest(text) in self.trained

    def check(self, subject: Subject) -> None:
        """Refuse another model than that of the fit, or one with another template or precision."""
        if self.needs_model:
            _refuse_other(self.subject, subject, "model")

    def check_encoder(self, subject: Subject) -> None:
        """Refuse another sentence encoder than that of the fit."""
        assert self.encoder is not None
        _refuse_other(self.encoder, subject, "encoder")

    def check_template(self, template: str) -> None:
        """Refuse another prompt template than that of the fit."""
        if self.needs_model and template != self.template:
            raise _refusal("prompt template", self.template, template)

    def to_bytes(self) -> bytes:
        """Return the file's bytes."""
        text, arrays = self._content()
        digest = file_digest(text, arrays)
        return save(arrays, {"lastword": text, "schema": SCHEMA, "digest": digest})

    def _content(self) -> tuple[str, dict[str, np.ndarray]]:
        arrays: dict[str, np.ndarray] = {}
        facts = _ADAPTER.dump_python(self, mode="json", context=arrays, exclude=_LEFT_OUT)
        return to_json(facts | {"trained": sorted(self.trained)}), arrays

    def write(self, path: str | Path) -> None:
        """Write the file atomically."""
        with open_whole(Path(path)) as file:
            file.write(self.to_bytes())

    @classmethod
    def read(cls, path: str | Path) -> "Probe":
        """Read a probe's file; InputError if it is missing, damaged, too large, or not a probe."""
        try:
            if Path(path).stat().st_size > MOST_BYTES:
                raise InputError(f"it is larger than {MOST_BYTES >> 20} MiB")
            return cls.from_bytes(Path(path).read_bytes())
        except (OSError, ValueError, InputError) as error:  # ValueError: a path with a NUL byte
            why = getattr(error, "strerror", None) or error
            raise InputError(f"cannot read a probe from {path}: {why}") from error

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a folder for `hf upload`, with the probe and a model card; OSError if that fails.

        The card names its question, classes, model and number of labels.
        """
        from huggingface_hub import ModelCard, ModelCardData

        Path(folder).mkdir(parents=True, exist_ok=True)
        self.write(Path(folder) / HUB_FILE)
        options = [option.text for option in self.question.options]
        facts = {
            "probe": self.name,
            "question": " ".join(self.question.instructions.split()) or "none",
            "options": ", ".join(options if self.linear is None else self.linear.classes),
            "model": self.source.model,
            "labels": str(self.labels),
        }
        tags = ["lastword", "probe"]
        data = ModelCardData(library_name="lastword", pipeline_tag="text-classification", tags=tags)
        lines = "\n".join(f"- {name}: {text}" for name, text in facts.items())
        ModelCard(f"---\n{data.to_yaml()}\n---\n\n{lines}\n").save(Path(folder) / "README.md")

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None) -> "Probe":
        """Read a probe from a folder of `save_pretrained`, or `OWNER/NAME` from the hub.

        Raises:
            CheckpointError: The hub has no probe with this name, or cannot be reached.
            InputError: The file is missing, damaged, too large, or not a probe.
        """
        from lastword.model.weights.hub import download  # it imports huggingface_hub

        if (folder := Path(name).expanduser()).is_dir():
            return cls.read(folder / HUB_FILE)
        return cls.read(download(str(name), HUB_FILE, revision)[0])

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Probe":
        """Return the probe in a file's bytes; InputError if they are not a valid probe."""
        try:
            arrays = load(raw)
            length = int.from_bytes(raw[:8], "little")
            metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
            text, schema = metadata["lastword"], metadata.get("schema")
            intact = metadata.get("digest") == file_digest(text, arrays)
        except _NONSENSE as error:
            raise InputError(f"this is not a probe file: {one_line(error)}") from error
        if schema != SCHEMA:
            raise InputError(f"its schema is {schema!r:.40}, expected {SCHEMA!r}: fit a new one")
        if not intact:
            raise InputError(
                "its contents are not those of its digest: copy it again, or fit a new one"
            )
        try:
            return _ADAPTER.validate_json(text, strict=True, extra="forbid", context=arrays)
        except ValidationError as error:
            raise InputError(f"this is not a probe file: {first_fault(error)}") from error


_ADAPTER = TypeAdapter(Probe)


def trained_digest(text: str) -> str:
    """Return a digest of a text, which is equal for copies (`trust.groups.normal`)."""
    return hashlib.sha256(normal(text).encode()).hexdigest()[:16]


def file_digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of a file's content."""
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


def encoder_name(model: str) -> str:
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
