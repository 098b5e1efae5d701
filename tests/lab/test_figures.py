"""Drawn figures against the records that they show, and their files."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from drawn import bars, curves, rules, texts, title
from matplotlib.patches import Rectangle
from synthetic import cells, synthetic_grid

from lastword.lab.report import draw, figures, tables
from lastword.records.cells import summarise
from lastword.records.columns import decisions
from lastword.records.marks import LOOKS
from lastword.records.view import short
from lastword.rule import geometry
from lastword.rule.theta import Theta

THETA = Theta()


@pytest.fixture(scope="module")
def records():
    return synthetic_grid(2, 80)


def test_a_trajectory_shows_the_probability_of_every_candidate(records):
    record = figures.representative(cells(records), "decisive")
    _, (axes,) = draw.canvas(1)
    keys = figures.trajectory(axes, record, THETA)
    answer = record
    S = answer.trajectory
    expected = np.exp(S) / np.exp(S).sum(axis=0)
    inks = [line.get_color() for line in axes.lines][-len(S) :]
    assert len(curves(axes)) == len(S)
    for ink, (letter, x, y) in zip(inks, curves(axes), strict=True):
        place = min(range(len(S)), key=lambda i: np.abs(expected[i] - y).max())
        np.testing.assert_allclose(y, expected[place], atol=1e-12)
        assert tuple(x) == tuple(range(S.shape[1]))
        assert (ink == LOOKS["truthful"].light) == record.truthful[place]
        is_error = place == answer.base_index and not record.truthful[place]
        assert (ink == LOOKS["winner"].light) == is_error
        assert letter == "" or any(key.startswith(f"{letter}: ") for key in keys)


def test_the_representative_item_is_the_median_of_the_corrected_ones(records):
    for operator in ("mix", "early", "decisive"):
        chosen = figures.representative(cells(records), operator)
        is_fixed = (records.mc1_base == 0) & (records.mc1 == 1)
        fixed = records[(records.operator == operator) & is_fixed]
        gains = sorted(map(gain, decisions(fixed)))
        assert gain(chosen) == pytest.approx(gains[(len(gains) - 1) // 2])
    figure = figures.regimes(cells(records), THETA)
    titles = [title(axes).split("\n")[0] for axes in figure.canvas.axes]
    assert titles == ["(a) Signed mixing", "(b) Earliest state", "(c) Decisive layer"]


def gain(record):
    truth = np.array(record.truthful, dtype=bool)
    return record.probabilities[truth].sum() - record.base_probabilities[truth].sum()


def test_an_operator_without_corrections_is_named(records):
    rest = records[records["operator"] != "mix"]
    figure = figures.regimes(cells(rest), THETA)
    assert len(figure.canvas.axes) == len(figures.regimes(cells(records), THETA).canvas.axes) - 1
    assert "No answer was repaired by: signed mixing." in figure.caption
    untouched = records[records.operator == "base"]
    assert figures.representative(cells(untouched), "mix") is None
    assert figures.regimes(cells(untouched), THETA) is None


def test_the_worked_example_shows_all_steps_of_an_item(records):
    record = figures.representative(cells(records), "decisive")
    path, sharpness, gates, scores = figures.worked_example(cells(records), THETA).canvas.axes
    S, layer = record.trajectory, record.decisive_layer
    ((_, x, y),) = curves(sharpness)
    np.testing.assert_allclose(y, geometry.decisiveness(S[:, 1:], THETA.eps_H))
    assert x[int(np.argmax(y))] == layer == rules(path)[0]
    window = THETA.window(S.shape[1] - 1)
    (shaded,) = path.patches
    assert isinstance(shaded, Rectangle)
    assert (shaded.get_x(), shaded.get_x() + shaded.get_width()) == (window[0], window[-1])
    assert [text[0] for text in texts(gates)] == ["✓"] * 3
    drawn = bars(scores)
    np.testing.assert_allclose(drawn["before"], np.exp(S[:, -1]) / np.exp(S[:, -1]).sum())
    np.testing.assert_allclose(drawn["after"], record.probabilities)
    shown = f"{geometry.margin(S[:, -1]):.2f} → {geometry.margin(record.scores):.2f} nats"
    assert shown in title(scores)


def test_models_are_ordered_by_invariant_and_numbered_in_both_panels():
    records = synthetic_grid(3, 60)
    means = tables.model_means([summarise(cell) for cell in cells(records)])
    failed = means[0]._replace(model="org/failed", delta_mc1=np.nan, delta_mc2=np.nan)
    usage, gains = figures.per_model([*means, failed]).canvas.axes
    invariants = dict(zip(records["model"], records["invariant"], strict=True))
    order = [f"{m[4:]}  {i}" for i, m in enumerate(sorted(invariants, key=invariants.get), 1)]
    assert [label.get_text() for label in usage.get_yticklabels()] == order
    by_model = {m.model[4:]: m for m in means}
    for place, name in enumerate(("decisive", "mix", "early")):
        expected = [by_model[label.split()[0]].fired[place] for label in order]
        np.testing.assert_allclose(bars(usage)[name], expected)
    early = usage.containers[2]
    assert max(patch.get_x() + patch.get_width() for patch in early) <= 100
    (points,) = gains.collections
    np.testing.assert_allclose(np.asarray(points.get_offsets())[:, 0], sorted(invariants.values()))
    assert {*texts(gains)} == {"1", "2", "3"}


# Text as figures show it: one printable line.
HOSTILE = short('</script><b>$x_1^{2}$ & \x0b\x1b[31m "q" ‮ 漢字 _x')


@draw.styled
def hostile():
    canvas, (first, second) = draw.canvas(2, columns=1, key=[HOSTILE])
    draw.label(first, HOSTILE, HOSTILE)
    draw.line(first, (0.0, 1.0), (0.2, float("nan")), "truthful", HOSTILE)
    draw.rule(first, 1.0, name=HOSTILE)
    draw.rule(first, 1.0, name=HOSTILE, across=True)
    draw.below(first, [HOSTILE])
    groups = {HOSTILE: ("base", (1.0, 2.0))}
    draw.bars(second, (HOSTILE, "b"), groups, horizontal=True)
    draw.at_ends(second, 0, ("", HOSTILE))
    draw.note(second, HOSTILE, (0.5, 0.5))
    return draw.Figure("hostile", HOSTILE, HOSTILE, canvas)


def test_all_marks_are_drawn_with_escaped_text_and_deterministically(tmp_path):
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        paths = draw.save(hostile(), folder)
    assert [path.suffix for path in paths] == [".pdf", ".svg"]
    for path in paths:
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()
    root = ElementTree.parse(paths[1]).getroot()  # well-formed XML
    texts = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("}text")]
    assert HOSTILE in texts, texts
    assert not any(node.tag.endswith("script") for node in root.iter())
    assert paths[0].read_bytes()[:5] == b"%PDF-"
