"""The rows that a language model answers: all, or a sample if many options make it slow."""

from dataclasses import replace

import numpy as np

from lastword.decide.item import item_of
from lastword.decide.states import read_passages
from lastword.decide.tracer import Tracer
from lastword.errors import ItemError
from lastword.text.prompt_template import Template
from lastword.trust.groups import FRACTION, SEED, fit_part
from lastword.tryout.labels import Labels

MANY = 20  # options of a question from which on a model answers a sample
LEAST = 20  # minimum number of rows of a sample
_COUNTED = 8  # number of rows from which the time is estimated
_OPERATIONS = {"cpu": 2e11, "cuda": 1e14}  # per second, counted as `_seconds` does


def sampled(tracer: Tracer, labels: Labels, template: Template, seconds: float) -> Labels:
    """Return the labelled rows that the model answers in a time; 0 is no limit.

    If that is not all, they are drawn from the half of the labels that tests a probe.
    """
    question, rows = labels.question, labels.rows
    if question is None or len(question.options) <= MANY or not seconds:
        return labels
    each = _seconds(tracer, labels, template)
    count = max(LEAST, int(seconds / each)) if each else len(rows)
    if count >= len(rows):
        return labels
    groups = labels.groups
    test = ~fit_part(np.array([groups[row.id] for row in rows]), FRACTION, SEED)
    order = np.random.default_rng(SEED).permutation(np.flatnonzero(test))
    return replace(labels, rows=tuple(rows[place] for place in np.sort(order[:count])))


def readable(tracer: Tracer, labels: Labels, template: Template) -> Labels:
    """Return the labelled rows whose prompts the model can read."""
    texts = [(row.text, row.id) for row in labels.rows]
    passages = read_passages(tracer, texts, labels.rows[0].question, template, "mean")
    pairs = zip(labels.rows, passages, strict=True)
    rows = tuple(row for row, read in pairs if not isinstance(read, ItemError))
    return replace(labels, rows=rows)


def _seconds(tracer: Tracer, labels: Labels, template: Template) -> float:
    """Estimate the time of an answer: every token passes every layer and the head after it."""
    rows = labels.rows[:_COUNTED]
    encoded = tracer.encode([item_of(row.text, row.question, template) for row in rows])
    tokens = [one.tokens for one in encoded if not isinstance(one, ItemError)]
    profile = tracer.profile
    weights = profile.depth * (12 * profile.width**2 + profile.width * profile.vocabulary)
    rate = _OPERATIONS.get(profile.device.type, _OPERATIONS["cpu"])
    return 2 * float(np.mean(tokens or [0])) * weights / rate
