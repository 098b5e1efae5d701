"""The page of the evidence is what its records say, and the records carry no text of others."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]
KEPT = HERE / "benchmarks" / "results" / "evidence"


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> None:
    sys.path.insert(0, str(HERE / "benchmarks"))


@pytest.mark.slow
def test_the_page_is_what_its_records_say() -> None:
    import evidence_page

    told = (HERE / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert evidence_page.page(KEPT) == told


def test_a_candidate_is_kept_as_its_length_alone() -> None:
    from evidence import mask

    for text in ("Delhi", "Tōkyō", "", "naïve café"):
        kept = mask(text)
        assert set(kept) <= {"x", "é"}
        assert (len(kept), len(kept.encode())) == (len(text), len(text.encode()))


def test_kept_records_carry_no_text() -> None:
    from tracelm import load_records

    for root in sorted(KEPT.iterdir()):
        records = load_records(root)
        assert set("".join(c for texts in records["candidates"] for c in texts)) <= {"x", "é"}
        assert set(records["prompt"]) == {""}
        assert records["question"].isna().all()
