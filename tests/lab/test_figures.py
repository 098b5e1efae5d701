"""Figure data against the records that it shows, and the drawn files."""

import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from synthetic import cells, synthetic_cell, synthetic_grid

from lastword.errors import RecordError
from lastword.lab.report import draw, figures, tables
from lastword.lab.report.figures import named
from lastword.records.cells import summarise
from lastword.records.marks import Band, Bars, Figure, Line, Note, Panel, Points, Rule
from lastword.records.portrait import short
from lastword.records.record import Record
from lastword.rule import geometry
from lastword.rule.theta import ScorerTheta, Theta

THETA = Theta()


@pytest.fixture(scope="module")
def records():
    return synthetic_grid(2, 80)


def marks(panel, kind):
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def test_a_trajectory_shows_the_probability_of_every_candidate(records):
    record = figures.representative(cells(records), "decisive")
    panel = figures.trajectory(record, THETA)
    answer = record.decision
    S = answer.trajectory
    expected = np.exp(S) / np.exp(S).sum(axis=0)
    for line in marks(panel, Line):
        place = min(range(len(S)), key=lambda i: np.abs(expected[i] - line.y).max())
        np.testing.assert_allclose(line.y, expected[place], atol=1e-12)
        assert line.x == tuple(range(S.shape[1]))
        assert (line.role == "truthful") == record.truthful[place]
        assert (line.role == "winner") == (
            place == answer.base_index and not record.truthful[place]
        )
    assert len(marks(panel, Line)) == len(S)


def test_the_representative_item_is_the_median_of_the_corrected_ones(records):
    for operator in ("mix", "early", "decisive"):
        chosen = figures.representative(cells(records), operator)
        is_fixed = (records.mc1_base == 0) & (records.mc1 == 1)
        fixed = records[(records.operator == operator) & is_fixed]
        gains = sorted(map(gain, Record.of(fixed)))
        assert gain(chosen) == pytest.approx(gains[(len(gains) - 1) // 2])
    figure = figures.regimes(cells(records), THETA)
    titles = [panel.title.split("\n")[0] for panel in figure.panels]
    assert titles == ["(a) Signed mixing", "(b) Earliest state", "(c) Decisive layer"]


def gain(record):
    truth = np.array(record.truthful, dtype=bool)
    before, after = np.exp(record.decision.base_scores), np.exp(record.decision.scores)
    return after[truth].sum() / after.sum() - before[truth].sum() / before.sum()


def test_an_operator_without_corrections_is_named(records):
    rest = records[records["operator"] != "mix"]
    figure = figures.regimes(cells(rest), THETA)
    assert len(figure.panels) == len(figures.regimes(cells(records), THETA).panels) - 1
    assert "No answer was repaired by: signed mixing." in figure.caption
    untouched = records[records.operator == "base"]
    assert figures.representative(cells(untouched), "mix") is None
    assert figures.regimes(cells(untouched), THETA) is None


def test_the_worked_example_shows_all_steps_of_an_item(records):
    record = figures.representative(cells(records), "decisive")
    path, sharpness, gates, scores = figures.worked_example(record, THETA).panels
    S, layer = record.decision.trajectory, record.decision.decisive_layer
    (curve,) = marks(sharpness, Line)
    np.testing.assert_allclose(curve.y, geometry.decisiveness(S[:, 1:], THETA.eps_H))
    assert curve.x[int(np.argmax(curve.y))] == layer == marks(path, Rule)[0].at
    window = THETA.window(S.shape[1] - 1)
    assert marks(path, Band)[0].start == window[0] and marks(path, Band)[0].end == window[-1]
    assert [note.text[0] for note in marks(gates, Note)] == ["✓"] * 3
    before, after = marks(scores, Bars)
    np.testing.assert_allclose(before.values, np.exp(S[:, -1]) / np.exp(S[:, -1]).sum())
    np.testing.assert_allclose(after.values, record.decision.probabilities)
    shown = f"{geometry.margin(S[:, -1]):.2f} → {geometry.margin(record.decision.scores):.2f} nats"
    assert shown in scores.title


def test_one_item_is_shown_for_all_models_in_the_order_of_the_invariant():
    parts = [
        synthetic_cell("org/same", "truthfulqa", 40, invariant=i).assign(model=f"org/m{i}")
        for i in (2.5, 0.4, 7.0)
    ]
    records = pd.concat(parts, ignore_index=True)
    figure = figures.across_models(figures.hardest(cells(records)), THETA)
    assert [panel.title for panel in figure.panels] == [
        f"m{i}\nI(M) = {i:.2f}" for i in (0.4, 2.5, 7.0)
    ]
    wrong = records[records.mc1_base == 0].groupby("id").size()
    assert wrong.max() == 3 and "3 are wrong at the last depth" in figure.caption
    items = Record.of(named(cells(records), f"TruthfulQA-{wrong.index[1]}"))
    assert f"(truthfulqa {wrong.index[1]})" in figures.across_models(items, THETA).caption
    assert figures.across_models(figures.hardest(cells(parts[0])), THETA) is None


def test_items_are_selected_by_benchmark_and_id(records):
    parted = cells(records)
    for name in ("TruthfulQA-7", "truthfulqa-7/mc1"):
        items = named(parted, name)
        assert (set(items["benchmark"]), list(items["id"])) == ({"truthfulqa"}, ["7/mc1"] * 2)
    assert set(named(parted, "halueval-qa-7")["benchmark"]) == {"halueval-qa"}
    with pytest.raises(RecordError, match=r"no item 'truthfulqa-777'.*truthfulqa-7/mc"):
        named(parted, "truthfulqa-777")
    lost = records.assign(error=records["error"].where(records["id"] != "3", "too long"))
    with pytest.raises(RecordError, match="'halueval-sum-3' failed on every model: too long"):
        named(cells(lost), "halueval-sum-3")


def test_the_scorer_figure_agrees_with_the_definition():
    figure = figures.scorer_motifs(THETA)
    # slope 4.8, jump 1.6, no curvature: 0.3 * 4.8 + 0.5 * 1.6
    assert figure.panels[0].title.endswith("h = 2.24")
    (schedule,) = marks(figure.panels[3], Line)
    sigmoid = 1 / (1 + np.exp(-5 * (np.array(schedule.x) - 0.5)))
    np.testing.assert_allclose(schedule.y, 0.5 + 0.5 * sigmoid)
    floor = replace(THETA, scorer=ScorerTheta(floor="final"))
    (other,) = marks(figures.scorer_motifs(floor).panels[3], Line)
    np.testing.assert_allclose(other.y, 0.5 * sigmoid)


def test_models_are_ordered_by_invariant_and_numbered_in_both_panels():
    records = synthetic_grid(3, 60)
    table = tables.per_model([summarise(cell) for cell in cells(records)], THETA)
    usage, gains = figures.per_model(table).panels
    invariants = dict(zip(records["model"], records["invariant"], strict=True))
    order = [f"{m[4:]}  {i}" for i, m in enumerate(sorted(invariants, key=invariants.get), 1)]
    decisive, mix, early = marks(usage, Bars)
    assert list(decisive.names) == order
    np.testing.assert_allclose(mix.start, decisive.values)
    np.testing.assert_allclose(early.start, np.add(decisive.values, mix.values))
    assert max(np.add(early.start, early.values)) <= 100
    (points,) = marks(gains, Points)
    assert list(points.x) == sorted(invariants.values()) and points.names == ("1", "2", "3")


# Text as figures show it: one printable line.
HOSTILE = short('</script><b>$x_1^{2}$ & \x0b\x1b[31m "q" ‮ 漢字 _x')


def test_all_marks_are_drawn_with_escaped_text_and_deterministically(tmp_path):
    every = (
        Bars((HOSTILE, "b"), (1.0, 2.0), "base", HOSTILE, texts=("", HOSTILE), horizontal=True),
        Points((1.0,), (1.0,), (HOSTILE,), "mix", HOSTILE),
        Rule(1.0, label=HOSTILE),
        Rule(1.0, label=HOSTILE, axis="y"),
        Band(0.0, 1.0),
        Note(0.5, 0.5, HOSTILE),
    )
    line = Line((0.0, 1.0), (0.2, float("nan")), "truthful", HOSTILE)
    panels = (Panel(HOSTILE, (line,), HOSTILE), Panel(HOSTILE, every))
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        paths = draw.save(Figure("hostile", HOSTILE, HOSTILE, panels), folder)
    assert [path.suffix for path in paths] == [".pdf", ".svg", ".png"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    root, texts = texts_of(paths[1])  # well-formed XML
    assert HOSTILE in texts, texts
    assert not any(node.tag.endswith("script") for node in root.iter())
    assert paths[0].read_bytes()[:5] == b"%PDF-" and paths[2].read_bytes()[1:4] == b"PNG"


def texts_of(path):
    root = ElementTree.parse(path).getroot()
    nodes = (node for node in root.iter() if node.tag.endswith("}text"))
    return root, ["".join(node.itertext()) for node in nodes]
