"""The page of the evidence is what its records say, and the records carry no text of others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import needs_evidence

pytestmark = needs_evidence
HERE = Path(__file__).resolve().parents[2]
KEPT = HERE / "experiments" / "results" / "evidence"


@pytest.mark.nightly
def test_the_page_is_what_its_records_say(script):
    told = (HERE / "docs" / "evidence.md").read_text(encoding="utf-8")
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    page = script("evidence_page")
    shown, bounds = page.read(KEPT)
    assert page.render(KEPT, shown, bounds) == told
    assert page.further(KEPT, shown, bounds) == page.FURTHER.read_text(encoding="utf-8")
    assert page.in_readme(readme, shown) == readme
    assert page.numbers([*shown, *bounds]) == page.RESULTS.read_text(encoding="utf-8")


@pytest.mark.nightly
def test_another_program_finds_the_same_numbers():
    program = HERE / "experiments" / "recompute.py"
    imports = re.findall(r"^(?:from|import) (\w+)", program.read_text(encoding="utf-8"), re.M)
    assert not {"lastword", "evidence", "evidence_page"} & set(imports)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "no disagreement" in done.stdout, done.stdout + done.stderr


def test_kept_records_carry_no_text():
    from lastword import load_records

    records = load_records(KEPT)
    runs = {"own", "chat", "jobs", "peers"}
    assert set(records["run"]) == {root.name for root in KEPT.iterdir()} == runs
    assert set("".join(c for texts in records["candidates"] for c in texts)) <= {"x", "é"}
    assert set(records["prompt"]) == {""}
    assert records["question"].isna().all()
