"""A language model's choice among fixed options, and corrections of it that labels prove.

A tracer reads how a model's preference among candidate answers moves through its depths, and
decides whether the model's own choice should stand:

    >>> from lastword import Tracer
    >>> tracer = Tracer.demo()  # an embedded model; Tracer.from_pretrained(name) loads yours
    >>> question = "Question: Which goods come from Baevwick? Answer:"
    >>> decision = tracer.correct(question, ["green wool combs", "pale cedar boats", "clay lamps"])
    >>> decision.base_answer, decision.answer
    ('clay lamps', 'pale cedar boats')
    >>> decision.operator, decision.decisive_layer
    ('decisive', 9)

Public:

    Tracer, Chat, Theta     a model made ready, its chat template, the constants of the method
    Decider, DecideOptions  what answers questions with a model: corrections, certificate, probes
    LoadOptions             what loads a model, as one object
    Item                    a prompt with its candidates, for many at once
    Decision, Gate          the answer, and every comparison that led to it
    decide_trajectory       the decision on scores by layer that are there already
    Choice, Multi, Predicate, Score, Option   questions about a text, for `Decider.decide`
    to_frame                decisions as a pandas DataFrame
    Probe                   a classifier fitted to labels on a model's states: its file, the hub
    ProbeClassifier         a scikit-learn classifier of texts, fitted to labels on a model's states
    try_labels              what labelled examples say of a model and of its corrections
    Certificate             a guarantee about answers, or the predictions of any system
    load_records            what `lastword eval` has written, as a pandas DataFrame
    TraceError              the root of every error; the tree stands in `lastword.errors`

These keep their names and meaning until the changelog says otherwise. So do, less firmly, the
modules that the documentation imports from: `lastword.methods` (a method of your own),
`lastword.lab.benchmarks`, `lastword.decide.answer`, `lastword.lab.demo`, `lastword.engines`,
`lastword.integrations`. Every other module is private and may move.

"Method, section 5" in a docstring is section 5 of docs/trace.md.
Names are imported when they are first used: `import lastword` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lastword.version import __version__ as __version__

if TYPE_CHECKING:
    from lastword.decide.decider import Decider as Decider
    from lastword.decide.options import DecideOptions as DecideOptions
    from lastword.decide.tracer import Tracer as Tracer
    from lastword.decide.trajectory import decide_trajectory as decide_trajectory
    from lastword.errors import TraceError as TraceError
    from lastword.integrations.scikit_learn import ProbeClassifier as ProbeClassifier
    from lastword.model.options import LoadOptions as LoadOptions
    from lastword.probes.probe import Probe as Probe
    from lastword.records.cells import load_records as load_records
    from lastword.records.decision import Decision as Decision
    from lastword.records.decision import to_frame as to_frame
    from lastword.rule.operators import Gate as Gate
    from lastword.rule.theta import Theta as Theta
    from lastword.text.chat import Chat as Chat
    from lastword.text.items import Item as Item
    from lastword.text.question import Choice as Choice
    from lastword.text.question import Multi as Multi
    from lastword.text.question import Option as Option
    from lastword.text.question import Predicate as Predicate
    from lastword.text.question import Score as Score
    from lastword.trust.certificate import Certificate as Certificate
    from lastword.tryout.run import try_labels as try_labels

_NAMES = {
    "lastword.decide.decider": "Decider",
    "lastword.decide.options": "DecideOptions",
    "lastword.decide.tracer": "Tracer",
    "lastword.decide.trajectory": "decide_trajectory",
    "lastword.errors": "TraceError",
    "lastword.integrations.scikit_learn": "ProbeClassifier",
    "lastword.model.options": "LoadOptions",
    "lastword.probes.probe": "Probe",
    "lastword.records.cells": "load_records",
    "lastword.records.decision": "Decision to_frame",
    "lastword.rule.operators": "Gate",
    "lastword.rule.theta": "Theta",
    "lastword.text.chat": "Chat",
    "lastword.text.items": "Item",
    "lastword.text.question": "Choice Multi Option Predicate Score",
    "lastword.trust.certificate": "Certificate",
    "lastword.tryout.run": "try_labels",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Return a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'lastword' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        from lastword.errors import missing_package

        raise missing_package(error) or error from None


def __dir__() -> list[str]:
    """Return all public names."""
    return [*globals(), *__all__]
