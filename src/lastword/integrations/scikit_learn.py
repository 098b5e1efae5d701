"""A probe as a scikit-learn classifier of texts."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from lastword.decide.item import inputs_of, text_of
from lastword.decide.questionnaire import Questionnaire, prepare
from lastword.decide.states import read_states
from lastword.decide.subject import subject_of
from lastword.decide.tracer import Tracer
from lastword.errors import InputError
from lastword.files.cells import cell_text
from lastword.model.encoder import Encoder, is_encoder
from lastword.model.options import LoadOptions
from lastword.probes.linear import Table
from lastword.probes.probe import Probe, encoder_name, trained_digest
from lastword.probes.state import OWN, POOLINGS, LinearProbe, Pooling, classes_of, fit_state
from lastword.text.question import Choice, Option
from lastword.text.tokens import Passage

_TOGETHER = 256  # texts per call of the model

# The states of each model; they are kept for cross-validation.
_STATES: WeakKeyDictionary[Tracer | Encoder, dict[Passage, np.ndarray]] = WeakKeyDictionary()

Texts = Any  # an array-like of one axis: a list, a column, an array


class ProbeClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of texts by a probe on a model's states (docs/statistics.md).

    The states of a text at every layer are computed once and cached, also for cross-validation.
    Clones share the model.

    Args:
        model: A tracer, or its name, folder or `LoadOptions`; or an `Encoder`, `minilm` or `mpnet`,
            which need neither instructions nor a template.
        instructions: The question in the prompt, which matters if the last token is pooled.
        poolings: The poolings to choose from: `mean` over a text's tokens, and the prompt's `last`
            token. An encoder has only one.
        template: See `Tracer.decide`.

    Attributes:
        classes_: The labels, in scikit-learn's order.
        probe_: The probe; `probe_.write(FILE)` writes a file for `lastword decide --probe FILE`.
    """

    classes_: np.ndarray
    probe_: Probe

    def __init__(
        self,
        model: Tracer | Encoder | LoadOptions | str,
        instructions: str | None = None,
        *,
        poolings: Sequence[Pooling] = ("mean", "last"),
        template: str | None = None,
    ) -> None:
        self.model = model
        self.instructions = instructions
        self.poolings = poolings
        self.template = template

    def fit(self, texts: Texts, labels: Any) -> "ProbeClassifier":
        """Fit the probe.

        Args:
            texts: The texts.
            labels: The class of each text: texts, booleans or integers. The probe needs two
                classes, one of them with two texts.

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
        classes_of(names)  # raises before the model is called
        question, source = Choice(self.instructions or "", options), self._source
        poolings, encoder = self._poolings, ""
        if isinstance(source, Encoder):
            encoder = encoder_name(source.name)
        states = self._states(read, question, poolings)
        probe = fit_state(states, names, poolings=poolings, encoder=encoder).probe
        subject = subject_of(source)
        self.classes_ = values
        self.probe_ = Probe(
            question,
            self._prepare(question).template_name,
            subject,
            probe,
            len(names),
            encoder=subject if encoder else None,
            trained=frozenset(map(trained_digest, read)),
        )
        return self

    @classmethod
    def from_probe(
        cls, probe: Probe, model: Tracer | Encoder | LoadOptions | str
    ) -> "ProbeClassifier":
        """Return the fitted classifier of a probe that reads one state, with its classes in order.

        Raises:
            InputError: The probe is for another model or template, or reads more than one state.
        """
        classifier, linear = cls(model, probe.question.instructions or None), probe.linear
        if linear is None or len(linear.blocks) > 1 or linear.stack is not None:
            raise InputError(f"{probe.name} reads more than one state: use it with Decider(probes)")
        if isinstance(source := classifier._source, Encoder) != bool(linear.encoder):
            raise InputError(f"{probe.name} reads the states of {probe.source.model}")
        assert isinstance(probe.question, Choice)
        (probe.check_encoder if linear.encoder else probe.check)(subject_of(source))
        probe.check_template(classifier._prepare(probe.question).template_name)
        values = [o.value for o in probe.question.options if o.text in linear.classes]
        classifier.probe_, classifier.classes_ = probe, np.array(values)
        return classifier

    def predict(self, texts: Texts) -> np.ndarray:
        """Return the class of each text."""
        scores = self._scores(texts)  # refuses a classifier that is not fitted
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def predict_proba(self, texts: Texts) -> Table:
        """Return the probabilities of `classes_`, as `lastword decide --probe` does."""
        scores = self._scores(texts)
        return np.asarray(softmax(scores / self._fit.temperature, axis=1))

    def decision_function(self, texts: Texts) -> np.ndarray:
        """Return scores of `classes_`; for two classes, the second's minus the first's [texts]."""
        scores = self._scores(texts)
        return scores if len(self.classes_) > 2 else scores[:, 1] - scores[:, 0]

    def likeness(self, texts: Texts) -> Float[np.ndarray, " texts"]:
        """Return p-values of the hypothesis that a text is like the labelled ones."""
        return self._fit.likeness_p(self._rows(texts))

    def _scores(self, texts: Texts) -> Table:
        """Return the scores in the order of `classes_`; the probe sorts classes as text."""
        scores, classes = self._fit.scores(self._rows(texts)), self._fit.classes
        return scores[:, [classes.index(option.text) for option in _options(self.classes_)]]

    @property
    def _fit(self) -> LinearProbe:
        check_is_fitted(self)
        assert self.probe_.linear is not None
        return self.probe_.linear

    def _rows(self, texts: Texts) -> Float[np.ndarray, "texts width"]:
        """Return the states that the probe reads."""
        (block,), read, question = self._fit.blocks, _texts(texts), self.probe_.question
        assert isinstance(question, Choice)
        rows = np.empty((len(read), len(self._fit.mean)))
        for first in range(0, len(read), _TOGETHER):
            chunk = slice(first, first + _TOGETHER)
            states = self._states(read[chunk], question, (block.pooling,))
            rows[chunk] = states[:, block.layer, 0]
        return rows

    def _states(
        self, texts: Sequence[str], question: Choice, poolings: Sequence[Pooling]
    ) -> Float[np.ndarray, "texts layers poolings width"]:
        source, template = self._source, self._prepare(question).template
        known = _STATES.setdefault(source, {})
        return read_states(source, texts, question, template, poolings, known)

    def _prepare(self, question: Choice) -> Questionnaire:
        chat = isinstance(self._source, Tracer) and self._source.chat is not None
        return prepare({"q": question}, self.template, chat=chat)

    @property
    def _source(self) -> Tracer | Encoder:
        model = self.model
        return model if isinstance(model, Tracer | Encoder) else _opened(model)

    @property
    def _poolings(self) -> Sequence[Pooling]:
        if isinstance(self._source, Encoder):
            return (OWN,)
        if isinstance(self.poolings, str) or not {*self.poolings} <= {*POOLINGS}:
            names = " and ".join(POOLINGS)
            raise InputError(f"poolings are a list of {names}, not {self.poolings!r}")
        return self.poolings

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


def _texts(texts: Texts) -> list[str]:
    return [text_of(value) for value in inputs_of(texts)]


def _options(values: np.ndarray) -> list[Option]:
    """Return an option for each class; 1.0 is the integer 1, and other numbers become texts."""
    plain = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values.tolist()]
    return [Option(v if isinstance(v, str | int) else cell_text(v)) for v in plain]
