"""A probe as a scikit-learn classifier of texts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from lastword.decide.item import inputs_of, item_of, text_of
from lastword.decide.questionnaire import Questionnaire, prepare
from lastword.decide.states import read_passages
from lastword.decide.subject import subject_of
from lastword.decide.tracer import Tracer, not_finite
from lastword.errors import InputError, ItemError
from lastword.files.cells import cell_text
from lastword.model.encoder import Encoder, is_encoder
from lastword.model.options import LoadOptions
from lastword.probes.linear import Table
from lastword.probes.probe import Probe, reader_name, trained_digest
from lastword.probes.state import OWN, POOLINGS, Pooling, StateProbe, classes_of, fit_state
from lastword.rule.geometry import tied_first
from lastword.text.question import Choice, Option, Question
from lastword.text.tokens import Passage
from lastword.trust.certificate import Certificate
from lastword.trust.claims import Trial, judge
from lastword.trust.drift import sampled
from lastword.trust.evidence import Evidence, Groups
from lastword.trust.groups import FRACTION, SEED, fit_part, marks, numbers
from lastword.trust.policy import Promise, family
from lastword.trust.terms import Terms

ALPHA = 0.05  # maximum share of broken answers, if the certificate is about breaks
_TOGETHER = 256  # texts per call of the model
_MOST_BYTES = 2**30  # maximum size of a model's cached states

# Cached states [depths, width] of each model, by passage, the oldest first.
_STATES: WeakKeyDictionary[Tracer | Encoder, dict[Passage, np.ndarray]] = WeakKeyDictionary()

Texts = Any  # an array-like of one axis: a list, a column, an array


class ProbeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of texts by a probe on a model's states (method, section 19).

    The states of a text at every depth are computed once and cached, also for cross-validation.
    Clones share the model.

    Args:
        model: A tracer, or its name, folder or `LoadOptions`; or an `Encoder`, `minilm` or `mpnet`,
            which need neither instructions nor a template.
        instructions: The question in the prompt, which matters if the last token is pooled.
        poolings: The poolings to choose from: `mean` over a text's tokens, and the prompt's `last`
            token. An encoder has only one.
        template: See `Tracer.decide`.
        promise: The promise of a certificate; see `lastword try`. Half of the texts then train the
            probe, and the other half compares it with the model's answers.

    Attributes:
        classes_: The labels of the texts that train the probe, in scikit-learn's order.
        probe_: The probe; `probe_.write(FILE)` writes a file for `lastword decide --probe FILE`.
        certificate_: The certificate, if there is a promise; None if these labels do not prove it.
            `certificate_.to_toml()` is the text of its file.
    """

    classes_: np.ndarray
    probe_: Probe
    certificate_: Certificate | None

    def __init__(
        self,
        model: Tracer | Encoder | LoadOptions | str,
        instructions: str | None = None,
        *,
        poolings: Sequence[Pooling] = ("mean", "last"),
        template: str | None = None,
        promise: Promise | None = None,
    ) -> None:
        self.model = model
        self.instructions = instructions
        self.poolings = poolings
        self.template = template
        self.promise = promise

    def fit(self, texts: Texts, labels: Any) -> "ProbeClassifier":
        """Fit the probe.

        Args:
            texts: The texts.
            labels: The class of each text: texts, booleans or integers. The probe needs two
                classes, one of them with two texts; with a promise, in the half that trains it.

        Raises:
            InputError: Another number of labels than texts, or too few labels for a probe.
            ItemError: A text cannot be read.
        """
        labels, read = column_or_1d(labels), _texts(texts)
        check_classification_targets(labels)
        if len(labels) != len(read):
            raise InputError(f"expected a label for each of {len(read)} texts, not {len(labels)}")
        values, places = np.unique(labels, return_inverse=True)
        options = _options(values)
        names = [options[place].text for place in places]
        fitting = np.ones(len(read), dtype=bool)
        if self.promise is not None:  # copies of a text are in one half
            groups = numbers([marks(None, text, (), None) for text in read])
            fitting = fit_part(groups, FRACTION, SEED)
        fitted = [name for name, in_fit in zip(names, fitting, strict=True) if in_fit]
        classes_of(fitted)  # raises before the model is called
        question = Choice(self.instructions or "", options)
        source = _source(self.model)
        ready, subject = self._prepare(question), subject_of(source)
        encoder = isinstance(source, Encoder)
        if encoder and self.promise is not None:
            raise InputError("a promise needs a model's answers, and an encoder gives none")
        poolings: Sequence[Pooling] = (OWN,) if encoder else self.poolings
        if not encoder and (isinstance(poolings, str) or not {*poolings} <= {*POOLINGS}):
            raise InputError(f"poolings are a list of {' and '.join(POOLINGS)}, not {poolings!r}")
        states = [_read(source, self._passages(read, question, pooling)) for pooling in poolings]
        probe = fit_state(np.stack(states, axis=2)[fitting], fitted, poolings=poolings).probe
        self.classes_ = values[[option.text in probe.classes for option in options]]
        if isinstance(source, Encoder):
            probe = replace(probe, reader=reader_name(source.name))
        reader, count = subject if encoder else None, len(fitted)
        texts_in_fit = (text for text, among in zip(read, fitting, strict=True) if among)
        trained = frozenset(map(trained_digest, texts_in_fit))
        about = question, ready.template_name, subject
        self.probe_ = Probe(*about, probe, count, reader=reader, trained=trained)
        if self.promise is not None:
            self.probe_ = replace(self.probe_, seed=SEED)
            tested = np.flatnonzero(~fitting).tolist()
            texts, truths = [read[i] for i in tested], [names[i] for i in tested]
            self.certificate_ = self._certified(ready, texts, truths, groups[~fitting])
        return self

    @classmethod
    def from_probe(
        cls, probe: Probe, model: Tracer | Encoder | LoadOptions | str
    ) -> "ProbeClassifier":
        """Return the fitted classifier of a probe that reads one state.

        Raises:
            InputError: The probe is for another model or template, or reads more than one state.
        """
        source, fit = _source(model), probe.fit
        if not isinstance(fit, StateProbe) or fit.beside is not None:
            raise InputError(f"{probe.name} reads more than one state: use it with Decider(probes)")
        if isinstance(source, Encoder) != (probe.reader is not None):
            needed = "a language model" if probe.reader is None else probe.reader.model
            raise InputError(f"{probe.name} reads the states of {needed}")
        classifier = cls(model, probe.question.instructions or None)
        if isinstance(source, Encoder):
            probe.check_reader(subject_of(source))
        else:
            assert isinstance(probe.question, Choice)
            probe.check(subject_of(source))
            probe.check_template(classifier._prepare(probe.question).template_name)
        values = [o.value for o in probe.question.options if o.text in fit.classes]
        classifier.probe_, classifier.classes_ = probe, np.array(values)
        return classifier

    def _certified(
        self, ready: Questionnaire, texts: Sequence[str], truths: Sequence[str], groups: Groups
    ) -> Certificate | None:
        """Compare the probe with the model's answers on the texts that did not train it."""
        tracer = _source(self.model)
        assert self.promise is not None and isinstance(tracer, Tracer)
        fit, probe, states = self._fit(), self.probe_, self._states(texts)
        items = [item_of(text, probe.question, ready.template) for text in texts]
        decided = tracer.correct_many(items, "base", blind="none")
        tops = [{d.candidates[i] for i in tied_first(d.base_scores).tolist()} for d in decided]
        base = np.array([truth in top for truth, top in zip(truths, tops, strict=True)])
        shown = np.array(fit.classes)[fit.scores(states).argmax(axis=1)] == np.array(truths)
        terms = Terms(ALPHA, methods=(probe.name,), promise=self.promise)
        (policy,) = family("mix", terms.methods, terms.promise)
        finding = judge([Trial(policy, 1.0, Evidence.of(base, shown, groups))], terms)
        if finding.chosen is None:
            return None
        reference = sampled(fit.likeness_p(states).tolist())
        mark = probe.certified(FRACTION)
        return Certificate.for_probe(
            subject_of(tracer), finding, mark, ready.template_name, reference
        )

    def predict(self, texts: Texts) -> np.ndarray:
        """Return the class of each text."""
        scores = self._scores(texts)
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def predict_proba(self, texts: Texts) -> Table:
        """Return the probabilities of `classes_`, as `lastword decide --probe` does."""
        return self._in_order(self._fit().probabilities(self._states(texts)))

    def decision_function(self, texts: Texts) -> np.ndarray:
        """Return scores of `classes_`; for two classes, the second's minus the first's [texts]."""
        scores = self._scores(texts)
        return scores if len(self.classes_) > 2 else scores[:, 1] - scores[:, 0]

    def likeness(self, texts: Texts) -> Float[np.ndarray, " texts"]:
        """Return p-values of the hypothesis that a text is like the labelled ones."""
        return self._fit().likeness_p(self._states(texts))

    def _scores(self, texts: Texts) -> Table:
        return self._in_order(self._fit().scores(self._states(texts)))

    def _fit(self) -> StateProbe:
        check_is_fitted(self)
        assert isinstance(self.probe_.fit, StateProbe)
        return self.probe_.fit

    def _in_order(self, table: Table) -> Table:
        """Return columns in the order of `classes_`; the probe sorts classes as text."""
        classes = self._fit().classes
        return table[:, [classes.index(option.text) for option in _options(self.classes_)]]

    def _states(self, texts: Texts) -> Float[np.ndarray, "texts width"]:
        fit, question, source = self._fit(), self.probe_.question, _source(self.model)
        read = _texts(texts)
        states = np.empty((len(read), len(fit.mean)))
        for first in range(0, len(read), _TOGETHER):
            chunk = slice(first, first + _TOGETHER)
            passages = self._passages(read[chunk], question, fit.pooling)
            states[chunk] = _read(source, passages)[:, fit.depth]
        return states

    def _prepare(self, question: Choice) -> Questionnaire:
        source = _source(self.model)
        chat = isinstance(source, Tracer) and source.chat is not None
        return prepare({"q": question}, self.template, chat=chat)

    def _passages(
        self, texts: Sequence[str], question: Question, pooling: Pooling
    ) -> list[Passage]:
        source = _source(self.model)
        if isinstance(source, Encoder):
            return source.encode(texts)
        assert isinstance(question, Choice)
        template, pairs = self._prepare(question).template, [(text, None) for text in texts]
        passages: list[Passage] = []
        for passage in read_passages(source, pairs, question, template, pooling):
            if isinstance(passage, ItemError):
                raise passage
            passages.append(passage)
        return passages

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: the input is a list of texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


@lru_cache(maxsize=1)
def _opened(model: LoadOptions | str) -> Tracer | Encoder:
    if isinstance(model, str) and is_encoder(model):
        return Encoder(model)
    return Tracer.from_pretrained(model)


def _source(model: Tracer | Encoder | LoadOptions | str) -> Tracer | Encoder:
    return model if isinstance(model, Tracer | Encoder) else _opened(model)


def _texts(texts: Texts) -> list[str]:
    return [text_of(value) for value in inputs_of(texts)]


def _options(values: np.ndarray) -> list[Option]:
    """Return an option for each class; numbers become texts, as in a table: 1.0 is `1`."""
    plain = values.tolist()
    return [Option(value if isinstance(value, str | bool) else cell_text(value)) for value in plain]


def _read(
    source: Tracer | Encoder, passages: Sequence[Passage]
) -> Float[np.ndarray, "texts depths width"]:
    """Return the states of passages at every depth, and cache them."""
    cache = _STATES.setdefault(source, {})
    if new := [passage for passage in dict.fromkeys(passages) if passage not in cache]:
        depths = range(source.profile.depth + 1)
        states = source.pooled(new, depths)
        if (fault := not_finite(states, depths)) is not None:
            raise fault
        cache.update(zip(new, states, strict=True))
    read = np.stack([cache[passage] for passage in passages])
    excess = len(cache) - _MOST_BYTES // read[0].nbytes
    for passage in [*cache][: max(0, excess)]:
        del cache[passage]
    return read
