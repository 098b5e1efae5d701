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

"Method, section 5" in a docstring is section 5 of docs/trace.md; from 13 on, of docs/statistics.md.
Names are imported when they are first used: `import lastword` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lastword.version import __version__ as __version__

if TYPE_CHECKING:
    from lastword.decide.decider import Decider
    from lastword.decide.options import DecideOptions
    from lastword.decide.tracer import Tracer
    from lastword.decide.trajectory import decide_trajectory
    from lastword.errors import TraceError
    from lastword.integrations.scikit_learn import ProbeClassifier
    from lastword.model.options import LoadOptions
    from lastword.probes.probe import Probe
    from lastword.records.cells import load_records
    from lastword.records.decision import Decision, to_frame
    from lastword.rule.operators import Gate
    from lastword.rule.theta import Theta
    from lastword.text.chat import Chat
    from lastword.text.items import Item
    from lastword.text.question import Choice, Multi, Option, Predicate, Score
    from lastword.trust.certificate import Certificate
    from lastword.tryout.run import try_labels

__all__ = [
    "Certificate",
    "Chat",
    "Choice",
    "DecideOptions",
    "Decider",
    "Decision",
    "Gate",
    "Item",
    "LoadOptions",
    "Multi",
    "Option",
    "Predicate",
    "Probe",
    "ProbeClassifier",
    "Score",
    "Theta",
    "TraceError",
    "Tracer",
    "decide_trajectory",
    "load_records",
    "to_frame",
    "try_labels",
]

_HOMES = {
    "Certificate": "lastword.trust.certificate",
    "Chat": "lastword.text.chat",
    "Choice": "lastword.text.question",
    "DecideOptions": "lastword.decide.options",
    "Decider": "lastword.decide.decider",
    "Decision": "lastword.records.decision",
    "Gate": "lastword.rule.operators",
    "Item": "lastword.text.items",
    "LoadOptions": "lastword.model.options",
    "Multi": "lastword.text.question",
    "Option": "lastword.text.question",
    "Predicate": "lastword.text.question",
    "Probe": "lastword.probes.probe",
    "ProbeClassifier": "lastword.integrations.scikit_learn",
    "Score": "lastword.text.question",
    "Theta": "lastword.rule.theta",
    "TraceError": "lastword.errors",
    "Tracer": "lastword.decide.tracer",
    "decide_trajectory": "lastword.decide.trajectory",
    "load_records": "lastword.records.cells",
    "to_frame": "lastword.records.decision",
    "try_labels": "lastword.tryout.run",
}


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
