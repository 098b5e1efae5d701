"""Cost of an answer: the weights that the tokens of a text pass through, about 12 d^2 per block."""

from dataclasses import dataclass

from lastword.decide.item import item_of
from lastword.decide.states import read_passages
from lastword.errors import ItemError
from lastword.model.backend import Profile
from lastword.model.encoder import EncoderProfile
from lastword.probes.probe import Fit, encoder_name
from lastword.probes.state import LinearProbe
from lastword.text.forest import build
from lastword.text.tokens import Passage
from lastword.tryout.material import Material

_COUNTED = 16  # number of texts from which the cost is estimated


@dataclass(frozen=True)
class Compute:
    """The compute of some texts, in weights times tokens.

    Attributes:
        answers: The model's answers; None if it does not answer.
        layer: One layer of the model, over the prompts without their options.
        encoders: A whole encoder, by its name.
    """

    answers: float | None
    layer: float
    encoders: dict[str, float]

    @classmethod
    def of(cls, material: Material) -> "Compute":
        """Count the tokens of the first texts."""
        job, question, texts = material.job, material.question, material.texts[:_COUNTED]
        encoders = dict[str, float]()
        for reader in job.readers:
            tokens = sum(len(passage.tokens) for passage in reader.encode(texts))
            encoders[encoder_name(reader.name)] = tokens * _weights(reader.profile)
        if (tracer := job.tracer) is None or question is None:
            return cls(None, 0.0, encoders)
        profile, answers = tracer.profile, 0.0
        for item in tracer.encode([item_of(text, question, job.template) for text in texts]):
            if not isinstance(item, ItemError):
                forest = build(item.prompt.branches)
                answers += len(forest) * _weights(profile)
                answers += len(forest.reads.rows) * profile.width * profile.vocabulary
        inputs = [(text, None) for text in texts]
        passages = read_passages(tracer, inputs, question, job.template, "last")
        read = sum(len(one.tokens) for one in passages if isinstance(one, Passage))
        return cls(answers, read * _weights(profile) / profile.depth, encoders)

    def of_fit(self, fit: Fit) -> float:
        """Return the compute of a probe's states."""
        assert isinstance(fit, LinearProbe)
        layers = sum(block.layer for block in fit.blocks if not block.encoder)
        return self.encoders.get(fit.encoder, 0.0) + self.layer * layers

    def cost(self, fit: Fit, asks: float) -> float:
        """Return the compute of an answer, relative to the model's if there is a model.

        `asks` is the share of texts for which the model's answer is needed too.
        """
        return self.of_fit(fit) if self.answers is None else self.of_fit(fit) / self.answers + asks


def _weights(profile: EncoderProfile | Profile) -> float:
    return 12.0 * profile.width**2 * profile.depth
