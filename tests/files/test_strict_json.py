"""JSON that every parser accepts."""

import json
import math

import numpy as np
import pytest

from lastword.files.strict_json import strict, to_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "null"),
        ([math.inf, -math.inf], '["+inf", "-inf"]'),
        ({1: (math.nan, 2.5), "é": [{"in": math.nan}]}, '{"1": [null, 2.5], "é": [{"in": null}]}'),
        (np.array([[1.5, np.nan], [np.inf, 2]]), '[[1.5, null], ["+inf", 2.0]]'),
        ({"flag": np.bool_(True), "count": np.int64(3), "odd": np.float32("nan")},
         '{"flag": true, "count": 3, "odd": null}'),
        ([True, None, "text", 3], '[true, null, "text", 3]'),
    ],
)  # fmt: skip
def test_values_are_written_as_strict_json(value, text):
    assert to_json(value) == text
    assert json.loads(text) == strict(value)
