"""Answering: typed questions about many texts, by the correction in force or by their probes.

Probes that read the mean over an input share one reading of it, to the deepest of their depths: a
deeper reading leaves the states above it as they are. A probe that reads a prompt's last token has
a reading of its own, so that no answer depends on which other questions were asked. A stacked probe
reads the model's own answer too, a trajectory probe every depth of it, with the input and without.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, repeat
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from lastword.decide.answer import (
    Answers,
    Probed,
    QuestionAnswer,
    answer_from,
    by_option,
)
from lastword.decide.batch import Scope
from lastword.decide.item import Input, item_of, render, text_of
from lastword.decide.questionnaire import Questionnaire
from lastword.errors import InputError, ItemError
from lastword.probes.probe import Probe
from lastword.probes.stacked import StackedProbe
from lastword.probes.state import Pooling, StateProbe
from lastword.probes.trajectory import TrajectoryProbe, features_of
from lastword.rule.answer import Answer
from lastword.text.passages import Passage, encode_passages
from lastword.text.prompt_template import Template
from lastword.text.question import Multi, Question, Single
from lastword.text.tokens import Chat, Overflow

_TOGETHER = 256  # texts that probes read in one plan

Pooled = Float[np.ndarray, "texts depths width"]


@runtime_checkable
class Reader(Protocol):
    """A model that states are read from: a tracer."""

    tokenizer: Any
    overflow: Overflow
    chat: Chat | None

    @property
    def profile(self) -> Any:
        """Its depth, width and context."""

    def pooled(self, passages: Sequence[Passage], depths: Sequence[int]) -> Pooled:
        """Return the mean state of each passage at some depths."""


def passages_of(
    reader: Reader,
    texts: Sequence[str],
    question: Question,
    template: Template,
    pooling: Pooling,
    names: Sequence[str | None] | None = None,
) -> list[Passage]:
    """Return what a probe of a question reads of each text.

    Raises:
        ItemError: A text that cannot be read.
    """
    read = encode_passages(
        [render(text, question, template) for text in texts],
        texts if pooling == "mean" else None,
        reader.tokenizer,
        context=reader.profile.context,
        overflow=reader.overflow,
        chat=reader.chat,
    )
    for place, passage in enumerate(read):
        if isinstance(passage, ItemError):
            name = None if names is None else names[place]
            raise ItemError(passage.reason, str(place) if name is None else name)
    return read  # type: ignore[return-value]


def read_states(
    reader: Reader,
    texts: Sequence[str],
    question: Question,
    template: Template,
    poolings: Sequence[Pooling],
) -> Float[np.ndarray, "texts depths poolings width"]:
    """Read every depth of some texts for a fit: one pass a text.

    Raises:
        ItemError: A text that cannot be read.
    """
    each = [passages_of(reader, texts, question, template, pooling) for pooling in poolings]
    together = [passage for own in zip(*each, strict=True) for passage in own]
    states = reader.pooled(together, range(reader.profile.depth + 1))
    shape = (len(texts), len(poolings), *states.shape[1:])
    return np.ascontiguousarray(states.reshape(shape).swapaxes(1, 2))


def answers(
    tracer: Any, inputs: Iterable[tuple[Input, str | None]], ready: Questionnaire
) -> Iterator[Answers]:
    """Answer questions about inputs in their order, as they are taken.

    Raises:
        InputError: A probe was fitted under another prompt template.
        ItemError: An input or a question that cannot be read.
    """
    asked = probed(tracer, ready)
    others = replace(ready, questions={n: q for n, q in ready.questions.items() if n not in asked})
    if not asked:
        yield from _corrected(tracer, inputs, ready)
        return
    rest = iter(inputs)
    while piece := list(islice(rest, _TOGETHER)):
        known = answer_texts(tracer, piece, asked, ready.template, tracer.unlike)
        more = _corrected(tracer, piece, others) if others.questions else repeat(Answers())
        for own, other in zip(known, more, strict=False):
            both = own | other
            yield Answers({name: both[name] for name in ready.questions})


def _corrected(
    tracer: Any, inputs: Iterable[tuple[Input, str | None]], ready: Questionnaire
) -> Iterator[Answers]:
    items = (tracer.trim(item) for value, name in inputs for item in ready.items(value, name))
    certified = () if tracer.certificate is None else tracer.certificate.questions
    plain = tracer.decider == "base"
    decisions = tracer.correct_many(items, "base" if plain else "decide", blind="none")
    while batch := list(islice(decisions, len(ready.singles))):
        own = [each.as_base() for each in batch] if plain else batch
        yield ready.answers(own, tracer.temperature, certified)


def probed(tracer: Any, ready: Questionnaire) -> dict[str, "Asked"]:
    """Return the questions that a probe answers, each with its probe.

    Raises:
        InputError: The probe was fitted under another prompt template.
    """
    found = {}
    for name, question in ready.questions.items():
        for probe in tracer.probes:
            if not isinstance(question, Multi) and probe.answers(question):
                probe.check_template(ready.template_name)  # its model was checked when it loaded
                found[name] = Asked(question, probe)
    return found


@dataclass(frozen=True)
class Asked:
    """A question with the probe that answers it."""

    question: Single
    probe: Probe

    @property
    def state(self) -> StateProbe:
        """Return what reads a state; a trajectory probe has none."""
        assert self.probe.state is not None
        return self.probe.state

    def answer(self, p: Mapping[str, float], how: Probed) -> QuestionAnswer:
        """Return the answer that probabilities by option give."""
        return answer_from(self.question, by_option(self.question, p), how, calibrated=True)


def answer_texts(
    tracer: Any,
    values: Sequence[tuple[Input, str | None]],
    asked: Mapping[str, Asked],
    template: Template,
    unlike: float = 0.0,
    *,
    trajectory: bool = False,
) -> list[Answers]:
    """Answer questions about some texts by their probes.

    Args:
        tracer: The model.
        values: Inputs with their names.
        asked: Questions by name, each with its probe.
        template: The probes' own.
        unlike: Texts whose p-value of being like the labelled ones is below this are deferred.
        trajectory: Whether probes say what each depth before theirs would have said.

    Raises:
        InputError: A probe is for a model of another depth.
        ItemError: A text that cannot be read.
    """
    texts = [text_of(value) for value, _ in values]
    names = [name for _, name in values]
    answers = [Answers() for _ in texts]
    for passages, own in _readings(tracer, texts, names, asked, template):
        fits = {name: one.state for name, one in own.items()}
        depths = sorted({fit.depth for fit in fits.values()})
        depths = [*range(depths[-1] + 1)] if trajectory else depths
        pooled = tracer.pooled(passages, depths)
        for name, one in own.items():
            rows = pooled[:, depths.index(fits[name].depth)].astype(np.float64)
            if isinstance(whole := one.probe.fit, StackedProbe):
                read = _read(tracer, texts, names, one.probe.question, template, _OWN)
                shares = _stacked(whole, fits[name].scores(rows), read)
            else:
                p = fits[name].probabilities(rows).tolist()
                shares = [(dict(zip(fits[name].classes, row, strict=True)), False) for row in p]
            own_fit, likeness = fits[name], fits[name].likeness_p(rows).tolist()
            each = zip(answers, shares, likeness, pooled, strict=True)
            for answer, (own_p, corrected), like, states in each:
                how = Probed(one.probe.name, like, like < unlike, corrected)
                said = own_fit.by_depth(states[: own_fit.depth + 1]) if trajectory else None
                if said is not None:
                    how = replace(how, candidates=own_fit.classes, trajectory=said.T)
                answer[name] = one.answer(own_p, how)
    for name, one in asked.items():
        if isinstance(fit := one.probe.fit, TrajectoryProbe):
            from lastword.methods import resolve

            scope = Scope("all", "all", resolve(["contextual"], tracer.facts))
            read = _read(tracer, texts, names, one.question, template, scope)
            shares = [_trajectory(fit, *own) for own in read]
            for answer, (own_p, corrected), (seen, _) in zip(answers, shares, read, strict=True):
                how = Probed(one.probe.name, None, corrected=corrected)
                if trajectory:
                    how = replace(how, candidates=seen.candidates, trajectory=seen.trajectory)
                answer[name] = one.answer(own_p, how)
    return [Answers({name: each[name] for name in asked}) for each in answers]


def _readings(
    reader: Reader,
    texts: Sequence[str],
    names: Sequence[str | None],
    asked: Mapping[str, Asked],
    template: Template,
) -> list[tuple[list[Passage], dict[str, Asked]]]:
    """The questions by reading: those that pool the same input together, each other by itself."""
    readings: list[tuple[list[Passage], dict[str, Asked]]] = []
    for name, one in asked.items():
        if one.probe.state is None:
            continue
        pooling = one.state.pooling
        passages = passages_of(reader, texts, one.probe.question, template, pooling, names)
        shared = [own for own in readings if pooling == "mean" and own[0] == passages]
        if shared:
            shared[0][1][name] = one
        else:
            readings.append((passages, {name: one}))
    return readings


_OWN = Scope("base", "base")  # the model's own scores, with the input and without

# An item as the model reads it, with its candidates' tokens.
_Reading = tuple[Answer, tuple[int, ...]]
# Probabilities of an item's options by their texts, and if the best is another than the model's.
_Shares = tuple[dict[str, float], bool]


def _stacked(
    fit: StackedProbe, known: Float[np.ndarray, "texts classes"], read: Sequence[_Reading]
) -> list[_Shares]:
    base = np.stack([own.base_scores for own, _ in read])
    blind = np.stack([own.blind_scores for own, _ in read if own.blind_scores is not None])
    scores = fit.scores(known, read[0][0].candidates, base, blind)
    return [_shares(own, u / fit.temperature) for (own, _), u in zip(read, scores, strict=True)]


def _trajectory(fit: TrajectoryProbe, own: Answer, tokens: Sequence[int]) -> _Shares:
    features = features_of(own, tokens)
    if features.shape[1] != len(fit.weights):
        raise InputError(
            f"{fit.name} has {len(fit.weights)} weights and an option of this model "
            f"{features.shape[1]} features: fit it again, with this model and this version"
        )
    return _shares(own, fit.scores(features) / fit.temperature)


def _read(
    tracer: Any,
    texts: Sequence[str],
    names: Sequence[str | None],
    question: Question,
    template: Template,
    scope: Scope,
) -> list[_Reading]:
    """The model's own decisions about some texts, each with its candidates' tokens."""
    pairs = zip(texts, names, strict=True)
    items = [item_of(text, question, template, id=name) for text, name in pairs]
    encoded = tracer.encode(items)
    for own in encoded:
        if isinstance(own, ItemError):
            raise own
    tokens = [own.candidate_tokens for own in encoded]
    return [*zip(tracer.correct_encoded(encoded, scope), tokens, strict=True)]


def _shares(own: Answer, scores: Float[np.ndarray, " options"]) -> _Shares:
    p = softmax(scores).tolist()
    return dict(zip(own.candidates, p, strict=True)), int(np.argmax(p)) != own.base_index
