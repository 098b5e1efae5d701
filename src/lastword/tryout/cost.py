"""Compute of an answer: the weights that the tokens of a text pass through, 12 d^2 per block."""

from lastword.decide.item import item_of
from lastword.decide.states import read_passages
from lastword.errors import ItemError
from lastword.model.backend import Profile
from lastword.model.encoder import EncoderProfile
from lastword.probes.probe import encoder_name
from lastword.probes.state import LinearProbe
from lastword.text.forest import build
from lastword.text.tokens import Passage
from lastword.tryout.material import Material

_COUNTED = 16  # number of texts from which the compute is estimated


class Compute:
    """The compute of the first texts, in weights times tokens, by source.

    Attributes:
        answers: The model's answers; 0 without a language model.
        layer: One layer of the model, over the prompts without their options.
        encoders: A whole encoder, by its name.
    """

    def __init__(self, material: Material) -> None:
        job, question, texts = material.job, material.labels.question, material.texts[:_COUNTED]
        self.answers, self.layer, self.encoders = 0.0, 0.0, dict[str, float]()
        for encoder in job.encoders:
            tokens = sum(len(passage.tokens) for passage in encoder.encode(texts))
            self.encoders[encoder_name(encoder.name)] = tokens * _weights(encoder.profile)
        if job.tracer is None or question is None:
            return
        profile = job.tracer.profile
        for item in job.tracer.encode([item_of(text, question, job.template) for text in texts]):
            if not isinstance(item, ItemError):
                forest = build(item.prompt.branches)
                self.answers += len(forest) * _weights(profile)
                self.answers += len(forest.reads.rows) * profile.width * profile.vocabulary
        inputs = [(text, None) for text in texts]
        passages = read_passages(job.tracer, inputs, question, job.template, "last")
        tokens = sum(len(one.tokens) for one in passages if isinstance(one, Passage))
        self.layer = tokens * _weights(profile) / profile.depth

    def relative(self, fit: LinearProbe, asks: float) -> float | None:
        """Return the compute of an answer relative to the model's; None without a model.

        `asks` is the share of texts for which the model's answer is needed too.
        """
        layers = sum(block.layer for block in fit.blocks if not block.encoder)
        states = self.encoders.get(fit.encoder, 0.0) + self.layer * layers
        return states / self.answers + asks if self.answers else None


def _weights(profile: EncoderProfile | Profile) -> float:
    return 12.0 * profile.width**2 * profile.depth
