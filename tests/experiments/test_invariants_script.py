"""I(M) of the paper's models, from local copies: a row per model, empty where there is none."""

from lastword import Tracer
from lastword.lab.report.published import read_published


def test_a_row_has_the_published_value_and_every_variant(script, tmp_path):
    grid = tmp_path / "grid.csv"
    grid.write_text("model,alias\nlastword/demo-organism,LLaMA-7B\n")
    invariants = script("invariants")
    rows = {row[0]: row[1:] for row in invariants.published_rows(grid)}
    values = Tracer.demo().invariant_readings
    assert [*rows] == [cell.model for cell in read_published()["truthfulqa"]]
    assert rows["LLaMA-7B"] == ["0.21", *(f"{values[name]:.2f}" for name in invariants.VARIANTS)]
    assert rows["Qwen3-14B"] == ["2.57", *[""] * 8]
