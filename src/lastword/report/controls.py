"""The table of the controls: what a gain has to beat, cell by cell (method, section 15)."""

import math

from lastword.evaluation.checklist import Findings
from lastword.evaluation.controls import Addition, Controls
from lastword.report.table import Column, Table, Value, delta, level

_P = Column("p", 3, significant=True)
_COLUMNS = (
    *(Column("Model"), Column("Benchmark"), level("Chance"), level("MC1 base"), level("MC1 TRACE")),
    *(Column("Flips"), delta("Flips gain"), Column("P", 3, significant=True)),
    *(level("Shortest"), level("Longest"), level("Question-blind"), level("Anti-blind")),
    level("Fitted wording"),
    *(level("Reading adds: MC1"), Column("fixed"), Column("broken"), _P),
    *(level("The middle adds: MC1"), Column("fixed"), Column("broken"), _P),
    *(level("Any depth"), level("Any depth, blind")),
)
_NOTES = (
    "Flips: as many overrides as the rule made, of items and to candidates drawn at random, 4,000 "
    "times; P is the share of draws that gain at least as much. A base below chance gains by any.",
    "Fitted wording: a conditional logit on what never reads the question, each item answered by "
    "weights of the others. Then with the base's scores (reading adds), then with the middle "
    "depths and T (the middle adds): answers fixed and broken by each step, exact sign test.",
    "Longest and shortest count characters. Anti-blind: what the base likes least blind.",
)


def controls_table(findings: Findings) -> Table:
    """A row a cell: chance, base and TRACE, then what never reads the question."""
    rows = tuple(
        (s.model, s.benchmark, *_row(beside))
        for s, beside in zip(findings.summaries, findings.controls, strict=True)
    )
    return Table("controls", "What a gain has to beat", _COLUMNS, rows, _NOTES)


def _row(beside: Controls) -> tuple[Value, ...]:
    flips, fit = beside.placebo, beside.fit
    names = ("shortest", "longest", "question-blind", "anti-blind")
    return (
        *(100 * share for share in (beside.chance, beside.base, beside.corrected)),
        *(flips.overrides, 100 * flips.gain, flips.p),
        *(100 * beside.wordings[name] for name in names),
        math.nan if fit is None else 100 * fit.wording,
        *_addition(None if fit is None else fit.reading),
        *_addition(None if fit is None else fit.middle),
        *(100 * beside.oracle, 100 * beside.blind_oracle),
    )


def _addition(addition: Addition | None) -> tuple[Value, ...]:
    if addition is None:
        return (math.nan,) * 4
    return (100 * addition.mc1, addition.fixed, addition.broken, addition.p)
