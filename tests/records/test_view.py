"""Views of a decision: roles of candidates, deciding depths."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_explanation import spatial

from lastword import Theta
from lastword.records.marks import LOOKS
from lastword.records.view import view


def test_roles_of_candidates():
    record = replace(spatial("base", 2), base_index=2)

    def roles(**changes):
        return view(replace(record, **changes))["roles"]

    assert roles(truthful=(False, True, False)) == ["corrected", "truthful", "winner"]
    assert roles(truthful=(False, True, False), index=2) == ["other", "truthful", "winner"]
    assert roles(truthful=(False, False, True), index=2) == ["other", "other", "truthful"]
    assert roles() == ["corrected", "other", "mix"]
    assert LOOKS["other"].dash == "dash" and LOOKS["truthful"].dash == "solid"


@pytest.mark.parametrize(
    ("operator", "chosen", "name"),
    [("decisive", [5], "ℓ* = 5"), ("early", [0], "depth 0"), ("mix", [4, 7, 11, 12], "")],
)
def test_the_deciding_depths_of_each_operator(operator, chosen, name):
    fields = {"trajectory": np.zeros((3, 13)), "operator": operator}
    gates: dict[str, Any] = {"gates": {}}  # the words of a mix need those of its regime
    shown = view(replace(spatial("decisive", 5), **fields, **gates, regime="scalar"), Theta())
    assert (shown["deciding"], shown["deciding_name"]) == (chosen, name)
    assert (shown["window"], shown["depths"]) == ([6, 10], [*range(13)])
