"""The evidence page agrees with its records, and the records have no text of others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import needs_evidence

pytestmark = needs_evidence
HERE = Path(__file__).resolve().parents[2]
RECORDS = HERE / "experiments" / "results" / "evidence"


@pytest.mark.nightly
def test_the_page_agrees_with_its_records(script):
    text = (HERE / "docs" / "evidence.md").read_text(encoding="utf-8")
    page = script("evidence_page")
    shown, bounds = page.read(RECORDS)
    assert page.render(RECORDS, shown, bounds) == text
    assert page.further(RECORDS, shown, bounds) == page.FURTHER.read_text(encoding="utf-8")
    assert page.numbers([*shown, *bounds]) == page.RESULTS.read_text(encoding="utf-8")


@pytest.mark.nightly
def test_another_program_computes_the_same_numbers():
    program = HERE / "experiments" / "recompute.py"
    imports = re.findall(r"^(?:from|import) (\w+)", program.read_text(encoding="utf-8"), re.M)
    assert not {"lastword", "evidence", "evidence_page"} & set(imports)
    process = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "no disagreement" in process.stdout, process.stdout


def test_the_records_have_no_text_of_others():
    from lastword import load_records

    records = load_records(RECORDS)
    runs = {"own", "chat", "jobs", "peers"}
    assert set(records["run"]) == {root.name for root in RECORDS.iterdir()} == runs
    assert set("".join(c for texts in records["candidates"] for c in texts)) <= {"x", "é"}
    assert set(records["prompt"]) == {""}
    assert records["question"].isna().all()
