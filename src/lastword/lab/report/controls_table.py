"""The table of what a gain has to beat (`lastword.probes.controls`)."""

import math
from collections.abc import Sequence
from itertools import chain

from lastword.lab.report.table import Table, Value, columns
from lastword.probes.controls import Controls, Fit
from lastword.records.cells import Summary

_COLUMNS = columns(
    "Model | Benchmark | Chance .2 | MC1 base .2 | MC1 TRACE .2 | Flips | Flips gain +.2 | P .3g"
    " | Shortest .2 | Longest .2 | Question-blind .2 | Anti-blind .2 | Fitted wording .2"
    " | Reading adds: MC1 .2 | fixed | broken | p .3g"
    " | The middle adds: MC1 .2 | fixed | broken | p .3g | Any depth .2 | Any depth, blind .2"
    " | Pairs base .2 | Pairs TRACE .2"
)
_NOTES = (
    "Flips: as many overrides as the rule made, of items and to candidates drawn at random, 4,000 "
    "times; P is the share of draws that gain at least as much. A base below chance gains by any.",
    "Fitted wording: a conditional logit on what never reads the question, each item answered by "
    "weights of the others. Then with the base's scores (reading adds), then with the middle "
    "depths and T (the middle adds): answers fixed and broken by each step, tested over groups.",
    "Longest and shortest count characters. Anti-blind: what the base likes least blind.",
    "Pairs: of two questions over one candidate set, the share with both right; whoever does not "
    "read the question gets none.",
)


def controls_table(summaries: Sequence[Summary], controls: Sequence[Controls]) -> Table:
    """Return a row per cell: chance, base and TRACE, then the controls, then pairs."""
    rows = tuple(
        (s.model, s.benchmark, *_row(beside), 100 * s.pairs_base, 100 * s.pairs)
        for s, beside in zip(summaries, controls, strict=True)
    )
    return Table("controls", "What a gain has to beat", _COLUMNS, rows, _NOTES)


def _row(beside: Controls) -> tuple[Value, ...]:
    flips, fit = beside.placebo, beside.fit
    names = ("shortest", "longest", "question-blind", "anti-blind")
    return (
        *(100 * share for share in (beside.chance, beside.base, beside.corrected)),
        *(flips.overrides, 100 * flips.gain, flips.p),
        *(100 * beside.wordings[name] for name in names),
        *((math.nan,) * 9 if fit is None else _added(fit)),
        *(100 * beside.oracle, 100 * beside.blind_oracle),
    )


def _added(fit: Fit) -> tuple[Value, ...]:
    steps = (
        (100 * result.mc1, result.fixed, result.broken, result.p)
        for result in (fit.reading, fit.middle)
    )
    return (100 * fit.wording, *chain(*steps))
