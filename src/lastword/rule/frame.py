"""Decisions as a pandas DataFrame: a row a decision, a column a fact of it."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lastword.rule.decision import Decision

if TYPE_CHECKING:
    import pandas as pd


def to_frame(decisions: Iterable[Decision]) -> "pd.DataFrame":
    """A row a decision: its JSON with the candidates, each gate's numbers in columns of their own.

    The columns of a gate are `gates.NAME.value`, `gates.NAME.threshold` and `gates.NAME.holds`; a
    gate that a decision's regime does not have is null there.

    Args:
        decisions: As `Tracer.correct_many` gives them.
    """
    import pandas as pd

    told = ({**d.to_dict(), "id": d.id, "candidates": list(d.candidates)} for d in decisions)
    return pd.json_normalize([{"id": None, **record} for record in told])
