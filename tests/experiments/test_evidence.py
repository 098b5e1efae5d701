"""The page of the evidence is what its records say, and the records carry no text of others."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).resolve().parents[2]
KEPT = HERE / "experiments" / "results" / "evidence"


@pytest.mark.slow
def test_the_page_is_what_its_records_say(script: Callable[[str], ModuleType]) -> None:
    told = (HERE / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert script("evidence_page").page(KEPT) == told


def test_a_candidate_is_kept_as_its_length_alone(script: Callable[[str], ModuleType]) -> None:
    mask = script("evidence").mask
    for text in ("Delhi", "Tōkyō", "", "naïve café"):
        kept = mask(text)
        assert set(kept) <= {"x", "é"}
        assert (len(kept), len(kept.encode())) == (len(text), len(text.encode()))


def test_kept_records_carry_no_text() -> None:
    from lastword import load_records

    records = load_records(KEPT)
    assert set(records["run"]) == {root.name for root in KEPT.iterdir()} == {"own", "chat", "peers"}
    assert set("".join(c for texts in records["candidates"] for c in texts)) <= {"x", "é"}
    assert set(records["prompt"]) == {""}
    assert records["question"].isna().all()
