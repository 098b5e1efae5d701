"""The sceptic's checklist: a clean run meets it, and each seeded flaw is found."""

from dataclasses import replace
from math import nan

import numpy as np
import pandas as pd
import pytest
from synthetic import synthetic_cell, write_cells

from lastword.evaluation.comparison import Comparison, Standing
from lastword.evaluation.controls import controls
from lastword.evaluation.statistics import judge
from lastword.records.cells import cells, summarise
from lastword.records.info import read_runs
from lastword.records.provenance import Extent, extents
from lastword.report.checklist import Findings, checklist, tally
from lastword.report.dependence import dependence
from lastword.theta import Theta

# By seed: one whose base is above chance.
BENCHMARKS = {"halueval-qa": 0, "halueval-qa@own": 0, "truthfulqa": 0, "truthfulqa@own6": 5}
WHOLE, TWO, BASELINES, FLIPS, CHANCE, TEMPLATES, BROKEN, PAIRS, QUESTION, MIDDLE, PEERS = range(11)


@pytest.fixture(scope="module")
def clean():
    frames = [synthetic_cell("org/m", n, 300, seed, blind="all") for n, seed in BENCHMARKS.items()]
    paired = frames[0]["place"]
    frames[0]["id"] = [f"pair/{place // 2}/{'ab'[place % 2]}" for place in paired]
    return pd.concat(frames, ignore_index=True)


def findings(records, **values):
    parted = cells(records)
    beside = [controls(cell) for cell in parted]
    found = Findings(
        cells=parted,
        summaries=[summarise(cell) for cell in parted],
        controls=beside,
        judgements=judge(parted, [own.objection for own in beside]),
        dependences=[dependence(cell, Theta()) for cell in parted],
        comparisons=(),
        extents={(c.model, c.benchmark): Extent(300, 300, 300) for c in parted},
    )
    return replace(found, **values)


def test_a_clean_run_meets_every_point(clean):
    points = checklist(findings(clean, comparisons=[compared(0.5)]))
    assert [p.status for p in points] == ["met"] * 11, points
    assert tally(points) == "11 met, 0 not met, 0 not applicable"
    summaries = {s.benchmark: s for s in findings(clean).summaries}
    fixed, broken = (sum(getattr(s, n) for s in summaries.values()) for n in ("fixed", "broken"))
    right = int((clean["mc1_base"] > 0).sum())
    assert f"{broken} of {right} right answers broken" in points[BROKEN].why
    assert f"{fixed} wrong ones fixed" in points[BROKEN].why
    assert points[TWO].why == "2 benchmarks: halueval-qa; truthfulqa"
    gains = [100 * summaries[n].delta_mc1 for n in ("truthfulqa@own6", "truthfulqa")]
    assert f"{gains[0]:+.2f} to {gains[1]:+.2f} points over 2 templates" in points[TEMPLATES].why


def test_a_subset_is_flagged(clean):
    found = findings(clean)
    part = found.extents | {("org/m", "truthfulqa"): Extent(817, 40, 300)}
    point = checklist(replace(found, extents=part))[WHOLE]
    assert (point.status, point.why) == ("not met", "truthfulqa: 40 of 817 questions")


def test_a_run_that_is_not_finished_and_items_that_failed_are_flagged(clean):
    point = checklist(findings(clean[5:]))[WHOLE]
    assert point.status == "not met"
    assert point.why == "org/m on halueval-qa: 295 of 300 records, the run is not finished"
    lost = clean.assign(error=clean["error"].where(clean.index > 2, "too long"))
    point = checklist(findings(lost))[WHOLE]
    assert point.status == "not met" and "3 of 300 records are of failed items" in point.why


def test_a_single_benchmark_is_flagged(clean):
    point = checklist(findings(clean[clean["benchmark"].str.startswith("truthfulqa")]))[TWO]
    assert (point.status, point.why) == ("not met", "1 benchmark: truthfulqa")


def test_a_single_template_is_flagged(clean):
    alone = clean[~clean["benchmark"].str.contains("@")]
    points = checklist(findings(alone))
    assert [p.status for p in points].count("not met") == 1
    assert (points[TEMPLATES].status, points[TEMPLATES].why) == (
        "not met",
        "one template a benchmark: org/m",
    )


def test_a_gain_that_changes_its_sign_with_the_template_is_flagged(clean):
    own = clean["benchmark"] == "truthfulqa@own6"
    turned = clean.assign(
        mc1=clean["mc1"].where(~own, clean["mc1_base"]),
        mc1_base=clean["mc1_base"].where(~own, clean["mc1"]),
    )
    points = checklist(findings(turned))
    assert points[TEMPLATES].status == "not met" and "its sign differs" in points[TEMPLATES].why
    assert points[BROKEN].status == "not met" and "in 1 of 4 cells" in points[BROKEN].why
    assert points[CHANCE].status == "not met" and "in 3 of 4 cells" in points[CHANCE].why


def test_a_benchmark_that_the_shortest_answer_solves_is_flagged(clean):
    short = [
        ["no" if true else text + " and so on" for text, true in zip(*row, strict=True)]
        for row in zip(clean["candidates"], clean["truthful"], strict=True)
    ]
    points = checklist(findings(clean.assign(candidates=short)))
    assert points[BASELINES].status == "not met"
    assert "above all in 0 of 4 cells" in points[BASELINES].why
    assert "shortest 100.00" in points[BASELINES].why


def test_a_benchmark_whose_longest_answer_is_true_is_flagged(clean):
    assert checklist(findings(clean))[BASELINES].status == "met"
    long = [
        [text + " and so on" * 20 if true else text for text, true in zip(*row, strict=True)]
        for row in zip(clean["candidates"], clean["truthful"], strict=True)
    ]
    point = checklist(findings(clean.assign(candidates=long)))[BASELINES]
    assert point.status == "not met" and "above all in 0 of 4 cells" in point.why
    assert "longest 100.00" in point.why


def test_a_base_below_chance_is_flagged(clean):
    assert checklist(findings(clean))[FLIPS].status == "met"
    wrong = [int(np.argmin(truthful)) for truthful in clean["truthful"]]
    point = checklist(findings(clean.assign(base_index=wrong, mc1_base=0.0)))[FLIPS]
    assert point.status == "not met" and "the base is not above chance in 4 of 4 cells" in point.why
    assert "the base 0.00, chance " in point.why


def test_pairs_that_break_together_are_flagged(clean):
    assert checklist(findings(clean))[PAIRS].status == "met"
    first = clean["id"].str.startswith("pair/")
    gone = clean.assign(
        mc1=clean["mc1"].where(~first, 0.0), mc1_base=clean["mc1_base"].where(~first, 1.0)
    )
    point = checklist(findings(gone))[PAIRS]
    assert (point.status, point.why) == (
        "not met",
        "no fewer pairs with both right in 0 of 1 cell; least for org/m on halueval-qa: "
        "100.00 before, 0.00 after",
    )
    bare = clean.assign(id=[str(i) for i in range(len(clean))])
    assert checklist(findings(bare))[PAIRS].status == "not applicable"


def test_a_middle_that_knows_nothing_more_is_flagged(clean):
    assert checklist(findings(clean))[MIDDLE].status == "met"
    flat = [
        np.repeat(np.stack(S)[:, -1:], np.stack(S).shape[1], axis=1) for S in clean["trajectory"]
    ]
    point = checklist(findings(clean.assign(trajectory=flat, t_scores=clean["base_scores"])))[
        MIDDLE
    ]
    assert point.status == "not met" and "the middle adds in 0 of 4 cells" in point.why


def test_a_run_without_the_blind_baseline_is_flagged(clean):
    bare = clean.assign(blind_scores=None, blind_trajectory=None, blind_t_scores=None)
    points = checklist(findings(bare))
    assert points[BASELINES].status == "not met" and "no blind baseline" in points[BASELINES].why
    assert points[QUESTION].status == "not applicable" and "--blind all" in points[QUESTION].why


def test_a_gain_of_the_wording_alone_is_flagged(clean):
    worded = clean.assign(blind_trajectory=clean["trajectory"], blind_t_scores=clean["t_scores"])
    point = checklist(findings(worded))[QUESTION]
    assert point.status == "not met" and "shown in 0 of 4 cells" in point.why
    assert "+0.00 of +" in point.why and "(0%)" in point.why


def test_chance_is_corrected_for_the_number_of_cells(clean):
    found = findings(clean)
    judgements = [replace(v, p=0.01, p_holm=0.06) for v in found.judgements]
    point = checklist(replace(found, judgements=judgements))[CHANCE]
    assert point.status == "not met" and "shown in 0 of 4 cells" in point.why


def standing(method, mc1):
    return Standing(
        method, "base-sum", 10, mc1, mc1 - 0.2, 0.5, 0.5, 0.5, 1, 1, 0.5, 0.5, 1, 1, 0.5, 0.5
    )


def compared(peer):
    blind, unknown = standing("question-blind@sum", 0.99), standing("dola@sum", nan)
    own = standing("trace", 0.6), standing("sled", peer), blind, unknown
    return Comparison("org/m", "truthfulqa", own, 0.9)


def test_a_peer_that_is_ahead_is_flagged(clean):
    point = checklist(findings(clean, comparisons=[compared(0.5), compared(0.7)]))[PEERS]
    assert point.status == "not met" and "one is ahead in 1 of 2 compared cells" in point.why
    assert "TRACE 60.00 (+40.00), sled 70.00 (+50.00 over base-sum)" in point.why
    alone = replace(compared(0.5), standings=(standing("trace", 0.6),))
    assert checklist(findings(clean, comparisons=[alone]))[PEERS].status == "not applicable"


def test_without_labels_nothing_is_asked_but_how_much_was_run():
    bare = synthetic_cell("org/m", "mine", 12)
    unknown = {name: np.nan for name in bare.columns if name.startswith("mc")}
    points = checklist(findings(bare.assign(truthful=None, **unknown), extents={}))
    assert {p.status for p in points} == {"not applicable"}
    assert "do not say how long" in points[WHOLE].why and points[TWO].why == "no labels to judge by"


def test_how_much_was_run_is_read_from_the_run(tmp_path):
    records = synthetic_cell("org/m", "halueval-qa", 12)
    write_cells(records, tmp_path / "whole")
    write_cells(records, tmp_path / "part", questions=500)
    name = ("org/m", "halueval-qa")
    assert extents(read_runs(tmp_path / "whole").values()) == {name: Extent(12, 12, 12)}
    assert extents(read_runs(tmp_path / "part").values()) == {name: Extent(500, 12, 12)}
