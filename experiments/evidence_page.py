"""The page of the evidence: docs/evidence.md and its figures, from the records that are kept.

Its words stand in `evidence.md.jinja`; every number comes from the records. The same numbers go to
`results/evidence.json`, which `recompute.py` holds to the records without a line of lastword.
"""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, StrictUndefined, Template

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


from lastword.files.strict_json import to_json
from lastword.lab.evaluation.statistics import Interval, Judgement, judge
from lastword.lab.report import draw
from lastword.lab.report.comparison import ORACLE, Comparison, read_comparisons
from lastword.lab.report.dependence import Dependence, Gain, dependence, dependence_figure
from lastword.lab.report.table import Column, Table, Value, to_markdown
from lastword.methods import resolve
from lastword.model.embedded import EMBEDDED
from lastword.probes.controls import Controls, controls
from lastword.records.cells import Cell, Summary, column, mean, summarise
from lastword.records.derived import derive, facts_of
from lastword.records.info import find_cells, read_run
from lastword.records.marks import Bars, Figure, Panel, Rule
from lastword.records.metrics import fixed_and_broken, mc1
from lastword.records.ragged import Lists
from lastword.records.stored import read_cells
from lastword.rule.theta import Theta
from lastword.trust.paired import mcnemar
from lastword.trust.testing import holm

level, delta = partial(Column, digits=2), partial(Column, digits=2, signed=True)

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
README = HERE.parent / "README.md"
RESULTS = HERE / "results" / "evidence.json"
FURTHER = HERE / "results" / "evidence.md"
PROMISED = HERE / "results" / "promised.json"  # of promised.py
PROBES = HERE / "results" / "probes"  # of probes.py
LABELS, MORE, NULL = "100", "200", ", labels permuted"
# Cells whose probe is right more often than the model by ten points, which half of 100 labels
# seldom prove.
UNPROVED = (
    *("smollm2-135m, sst2", "smollm2-135m, agnews", "gemma, agnews", "qwen, agnews"),
    "smollm2-135m, emotion",
)
TITLES = {
    "jsonl:tools": "tool choice of 8",
    "jsonl:trec": "TREC",
    "jsonl:agnews": "AG News",
    "jsonl:sst2": "SST-2",
    "jsonl:emotion": "emotion",
    "jsonl:csqa": "CommonsenseQA",
    "jsonl:arc": "ARC-Challenge",
    "jsonl:banking77": "BANKING77",
    "jsonl:clinc150": "CLINC150",
    "jsonl:everyday": "everyday",
    "everyday": "everyday",
    "jsonl:truthfulqa": "TruthfulQA, six pairs",
    "truthfulqa": "TruthfulQA, six pairs",
    "truthfulqa@own6": "TruthfulQA, our six pairs",
    "truthfulqa@zero-shot": "TruthfulQA, no pairs",
    "chat": "TruthfulQA, chat template",
    "jsonl:halueval-qa": "HaluEval-QA with knowledge",
    "halueval-qa": "HaluEval-QA with knowledge",
    "halueval-qa-closed": "HaluEval-QA without",
    "jsonl:fib": "FIB",
    "fib": "FIB",
    "jsonl:factor": "FACTOR, news",
    "factor": "FACTOR, news",
}
MODELS = {
    "lastword/smollm2-135m": "SmolLM2-135M",
    "gemma": "Gemma 3 270M",
    "qwen": "Qwen2.5-Coder-0.5B",
}
# Each is held against the base that the page prints: means over tokens.
CORRECTIONS = ("trace-gated", "pmi@0.25", "pmi@0.5", "pmi@1", "dcpmi", "batch-calibrated")
# Not in README: other templates of a set, and sets that are no job or whose base is below chance.
LEFT_OUT = ("TruthfulQA, our", "TruthfulQA, no", "TruthfulQA, chat", "HaluEval", "FIB", "FACTOR")
THETA = Theta()


@dataclass(frozen=True)
class Correction:
    """One correction on one cell.

    Attributes:
        mc1: Mean MC1.
        fixed: Items that the base has wrong and it right.
        broken: Items that the base has right and it wrong.
        p: McNemar's exact test, two-sided.
        p_holm: The same after Holm's correction over all tests of all cells, TRACE's too.
    """

    mc1: float
    fixed: int
    broken: int
    p: float
    p_holm: float = math.nan

    @property
    def sign(self) -> str:
        """`+` or `-` where it gains or loses beyond chance, Holm's correction made."""
        if not self.p_holm < 0.05:
            return ""
        return "+" if self.fixed > self.broken else "-"


@dataclass(frozen=True)
class Shown:
    """A cell with what is said of it."""

    title: str
    cell: Cell
    summary: Summary
    judgement: Judgement
    dependence: Dependence | None
    controls: Controls
    corrections: dict[str, Correction]

    @property
    def model(self) -> str:
        """What the page calls the model."""
        return MODELS.get(self.cell.model, self.cell.model)

    @property
    def best(self) -> tuple[str, Correction] | None:
        """The correction that reads the question with the highest MC1, chosen after the fact."""
        rows = self.corrections.items()
        return max(rows, key=lambda row: row[1].mc1) if rows else None

    @property
    def rival(self) -> tuple[str, float]:
        """The best of what never reads the question."""
        known = {name: share for name, share in self.controls.rivals.items() if share == share}
        return max(known.items(), key=lambda row: row[1])


def write(kept: Path) -> None:
    """Make the page, its figures and the numbers on it."""
    shown, bounds = read(kept)
    (DOCS / "evidence.md").write_text(render(kept, shown, bounds), encoding="utf-8")
    README.write_text(in_readme(README.read_text(encoding="utf-8"), shown), encoding="utf-8")
    RESULTS.write_text(numbers([*shown, *bounds]), encoding="utf-8")
    FURTHER.write_text(further(kept, shown, bounds), encoding="utf-8")
    with TemporaryDirectory() as folder:
        for figure in (depths(shown), gains(shown)):
            paths = draw.save(figure, Path(folder))
            svg = next(path for path in paths if path.suffix == ".svg")
            (DOCS / "images" / svg.name).write_bytes(svg.read_bytes())


def page(kept: Path) -> str:
    """The page as text."""
    return render(kept, *read(kept))


def in_readme(text: str, shown: Sequence[Shown]) -> str:
    """README with its table of jobs: by set and model the base, TRACE, and the best correction."""
    before, _, rest = text.partition("<!-- evidence -->\n")
    _, _, after = rest.partition("<!-- evidence -->\n")
    columns = (Column("task"), level("chance"), *map(Column, MODELS.values()))
    by = {(one.title, one.model): one for one in shown}
    rows = tuple(
        (
            title,
            100 * _largest(own).summary.chance,
            *(_brief(by.get((title, m))) for m in MODELS.values()),
        )
        for title in dict.fromkeys(TITLES.values())
        if not title.startswith(LEFT_OUT)
        if (own := [one for one in shown if one.title == title])
    )
    table = body(Table("readme", "Does it help?", columns, rows))
    lean = re.sub(r" {2,}", " ", re.sub(r"-{3,}", "--", table))
    return f"{before}<!-- evidence -->\n{lean}\n<!-- evidence -->\n{after}"


def _largest(cells: Sequence[Shown]) -> Shown:
    """Of a set's cells the one with the most items: models were not asked the same number."""
    return max(cells, key=lambda one: one.judgement.items)


def _brief(one: Shown | None) -> str:
    """`23.3 → 22.0; 51.3 ▲`, with a mark where Holm's test rejects."""
    if one is None:
        return "–"
    s, marks = one.summary, {"hurts": " ▼", "gains": " △", "helps": " ▲", "unclear": ""}
    text = f"{100 * s.mc1_base:.1f} → {100 * s.mc1:.1f}{marks[one.judgement.finding]}"
    return text if one.best is None else f"{text}; {_signed(one.best[1])}"


def render(kept: Path, shown: Sequence[Shown], bounds: Sequence[Shown]) -> str:
    """The page of cells in hand."""
    promised = json.loads(PROMISED.read_text(encoding="utf-8"))
    tables = [
        labels_table(promised),
        encoders_table(),
        verdicts_table(shown),
    ]
    return _template("evidence.md.jinja").render(
        tables={table.name: body(table) for table in tables},
        shown=shown,
        bounds={one.cell.model.removeprefix(EMBEDDED): one for one in bounds},
        counts=counts(shown),
        percent=lambda share: f"{100 * share:.1f}",
        promises=_promises(promised),
        unproved=_unproved(promised),
        run=read_run(next(cell for cell in find_cells(kept) if cell.name == "truthfulqa")),
    )


def further(kept: Path, shown: Sequence[Shown], bounds: Sequence[Shown]) -> str:
    """Return the tables that the page leaves out, as Markdown."""
    compared = read_comparisons(kept / "peers", cells_of(kept / "peers"))
    compared += read_comparisons(
        kept / "own", [c for c in cells_of(kept / "own") if not is_bound(c)]
    )
    tables = [
        changes_table(shown),
        corrections_table(shown),
        controls_table([*shown, *bounds]),
        wordings_table([*shown, *bounds]),
        needs_table(shown),
        choices_table(shown),
        peers_table(compared),
    ]
    template = _template("evidence_tables.md.jinja")
    return template.render({table.name: body(table) for table in tables})


def _template(name: str) -> Template:
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.from_string((HERE / name).read_text(encoding="utf-8"))


def _promises(promised: dict[str, Any]) -> dict[str, float]:
    """Return what 100 labels certify over all cells, with the true labels and permuted ones."""
    drawn = [cell["drawn"][""][LABELS]["gain"] for cell in promised.values()]
    null = [cell["drawn"][NULL][LABELS]["gain"] for cell in promised.values()]
    return {
        "cells": len(drawn),
        "ten": sum(own["true gain"] >= 10 for own in drawn),
        "draws": min(own["draws"] for own in drawn),
        "worst": max(own["worse"] for own in drawn),
        "null": mean(np.array([own["on"] for own in null])),
    }


def _unproved(promised: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return, by labels, how often and how much the cells gain whose probe is seldom proved."""
    sizes = (LABELS, MORE)
    drawn = [promised[name]["drawn"][""] for name in UNPROVED]
    own = {n: [cell[n]["gain"] for cell in drawn if n in cell] for n in sizes}
    return {n: [(c["on"], c["true gain"]) for c in cells] for n, cells in own.items()}


def counts(shown: Sequence[Shown]) -> dict[str, list[Shown]]:
    """The cells by what is said of them, and those that a reader of the summary asks for."""
    by = {name: [one for one in shown if one.judgement.finding == name] for name in FINDINGS}
    return by | {
        "corrected": [one for one in shown if any(c.sign == "+" for c in one.corrections.values())],
        "beaten": [one for one in shown if _beats(one)],
        "middle": _middle(shown),
        "reading": [one for one in shown if one.controls.fit and one.controls.fit.reading.positive],
        "fits": [one for one in shown if one.controls.fit],
        "harmed": [one for one in shown if any(c.sign == "-" for c in one.corrections.values())],
    }


def _middle(shown: Sequence[Shown]) -> list[Shown]:
    """Where the middle adds, after Holm's correction over the cells that were read both ways."""
    rows = [(one, one.controls.fit.middle) for one in shown if one.controls.fit is not None]
    fair = holm(np.array([added.p for _, added in rows]))
    pairs = zip(rows, fair, strict=True)
    return [one for (one, added), p in pairs if added.positive and p < 0.05]


FINDINGS = ("helps", "gains", "hurts", "unclear")


def _beats(one: Shown) -> bool:
    """Whether a correction gains beyond chance and is above all that never reads the question."""
    gains = [c.mc1 for c in one.corrections.values() if c.sign == "+"]
    return bool(gains) and max(gains) > one.rival[1]


def read(kept: Path) -> tuple[list[Shown], list[Shown]]:
    """The real models' cells, judged together, and those of the embedded models."""
    named = [(root, cell) for root in roots(kept) for cell in cells_of(root)]
    named = [(root, cell) for root, cell in named if root.name != "peers"]
    bounds = [(root, cell) for root, cell in named if is_bound(cell)]
    real = [
        (root, replace(cell, benchmark="chat") if root.name == "chat" else cell)
        for root, cell in named
        if not is_bound(cell)
    ]
    real.sort(key=lambda pair: _order(pair[1]))
    return judged(real), judged(bounds)


def _order(cell: Cell) -> tuple[int, int]:
    return list(TITLES).index(cell.benchmark), list(MODELS).index(cell.model)


def is_bound(cell: Cell) -> bool:
    """Whether the cell is of a model that is no evidence, but a lower bound."""
    return cell.model.startswith(EMBEDDED) or cell.model.endswith("stories260K")


def judged(named: Sequence[tuple[Path, Cell]]) -> list[Shown]:
    """Cells with all that is said of them; Holm's correction is over every test of them."""
    beside = [controls(cell) for _, cell in named]
    rows = [corrections(root, cell) for root, cell in named]
    tests = [(i, name, own.p) for i, row in enumerate(rows) for name, own in row.items()]
    others = [p for *_, p in tests]
    verdicts = judge([cell for _, cell in named], [own.objection for own in beside], others)
    together = holm(np.array([*others, *(own.p for own in verdicts)]))
    fair = {(i, name): float(p) for (i, name, _), p in zip(tests, together, strict=False)}
    return [
        Shown(
            TITLES.get(cell.benchmark, cell.benchmark),
            cell,
            summarise(cell),
            verdicts[i],
            dependence(cell, THETA),
            beside[i],
            {n: replace(own, p_holm=fair[i, n]) for n, own in rows[i].items()},
        )
        for i, (_, cell) in enumerate(named)
    ]


def corrections(root: Path, cell: Cell) -> dict[str, Correction]:
    """What each correction makes of a cell; one that does not apply to it is left out."""
    if not cell.items["blind_t_scores"].notna().all():
        return {}
    run = next(
        info
        for info in map(read_run, find_cells(root))
        if (info["model"], info["benchmark"]) == (cell.model, cell.benchmark)
    )
    names = [name for name in CORRECTIONS if name != "dcpmi"]
    scores = derive(cell, resolve(names, facts_of(run)))
    if len({tuple(sorted(texts)) for texts in values(cell, "candidates")}) > 1:
        del scores["batch-calibrated"]  # there is no label set that the items share
    base = list(cell.items["base_scores"])
    kept = {name: _correction(cell, own, base) for name, own in scores.items()}
    if root.name == "jobs":  # elsewhere a candidate may have other tokens after the blind prompt
        kept["dcpmi"] = _correction(cell, sums(cell, blind=1.0), base)
    return {name: kept[name] for name in CORRECTIONS if name in kept}


def sums(cell: Cell, *, blind: float) -> list[np.ndarray]:
    """Sums over tokens of b less so much of q; labels have the same tokens after both prompts."""
    b, q = (Lists.of(cell.items[name]) for name in ("base_scores", "blind_scores"))
    tokens = Lists.of(pd.Series(values(cell, "candidate_tokens")))
    return [
        (b.stack(one)[0] - blind * q.stack(one)[0]) * tokens.stack(one)[0]
        for one in np.arange(len(cell.items))[:, None]
    ]


def _correction(
    cell: Cell, scores: Sequence[np.ndarray | None], base: Sequence[np.ndarray]
) -> Correction:
    """Its answers beside the base's; what does not apply to an item leaves the base's answer."""
    rows = [
        (mc1(np.asarray(b), truths), mc1(np.asarray(b if u is None else u), truths))
        for u, b, truths in zip(scores, base, cell.items["truthful"], strict=True)
    ]
    before, after = np.array(rows)[cell.mc1_places].T
    fixed, broken = fixed_and_broken(after - before)
    return Correction(mean(after), fixed, broken, mcnemar(fixed, broken))


def numbers(shown: Sequence[Shown]) -> str:
    """Every number of the first tables, a cell each, as another program can check them."""
    rows = [
        {
            "cell": [one.cell.model, one.cell.benchmark],
            "items": one.judgement.items,
            "base": one.summary.mc1_base,
            "base, sums": bare(one) if one.corrections else None,
            "trace": one.summary.mc1,
            "fixed": one.judgement.fixed,
            "broken": one.judgement.broken,
            "p": one.judgement.p,
            "p_holm": one.judgement.p_holm,
            "finding": one.judgement.finding,
            "controls": one.controls.to_dict(),
            "corrections": {name: vars(own) for name, own in one.corrections.items()},
        }
        for one in shown
    ]
    return json.dumps(json.loads(to_json(rows)), indent=1) + "\n"


def roots(kept: Path) -> list[Path]:
    return sorted(path for path in kept.iterdir() if path.is_dir())


def cells_of(root: Path) -> list[Cell]:
    return read_cells(Path(root))


# --- tables -------------------------------------------------------------------------------------

_P = (Column("p", 2, significant=True), Column("Holm p", 2, significant=True))


def labels_table(promised: dict[str, Any]) -> Table:
    """What 100 labels buy, a row a set and model; nothing is gained in a draw with nothing on."""
    columns = (
        *(Column("Task"), Column("Model"), level("Model alone"), Column("Corrections, certified")),
        *(Column("With a probe, certified"), Column("On"), Column("At least")),
        Column("Bag of words"),
    )
    files = {key: PROBES / f"{key}.json" for key in (Path(model).name for model in MODELS)}
    probed = {key: json.loads(path.read_text("utf-8"))["sets"] for key, path in files.items()}
    asked = [
        (title, shown, promised[f"{key}, {name}"], _words(probed[key].get(name)))
        for benchmark, title in TITLES.items()
        for key, shown in zip(files, MODELS.values(), strict=True)
        for name in [benchmark.removeprefix("jsonl:")]
        if f"{key}, {name}" in promised
    ]
    rows = tuple(_labels_row(*own) for own in asked)
    return Table("labels", "What 100 labels buy", columns, rows)


def _labels_row(title: str, model: str, cell: dict[str, Any], words: str) -> tuple[Value, ...]:
    drawn = cell["drawn"][""][LABELS]
    alone, own = drawn["gain, corrections alone"], drawn["gain"]
    base = 100 * cell["base"]
    least = "–" if own["at least"] is None else f"{own['at least']:+.1f}"
    return (
        *(title, model, base, f"{base + alone['true gain']:.1f}"),
        *(f"{base + own['true gain']:.1f}", f"{own['on']:.0%}", least, words),
    )


def _words(drawn: dict[str, Any] | None) -> str:
    """Share right of a bag of words, where options are the same for all texts."""
    if drawn is None:
        return "–"
    return f"{100 * mean(np.array([own['words'] for own in drawn[LABELS]])):.1f}"


def encoders_table() -> Table:
    """Return accuracy with 100 labels beside sentence encoders and SetFit, from encoders.py."""
    path = PROBES / "encoders-smollm2-135m.json"
    encoders = json.loads(path.read_text(encoding="utf-8"))
    setfit = json.loads((PROBES / "setfit.json").read_text(encoding="utf-8"))
    names = {
        "words": "Bag of words",
        "probe": "Probe",
        "minilm": "MiniLM",
        "mpnet": "mpnet",
        "probe and mpnet, side": "Probe and mpnet",
        "chosen": "Chosen",
    }
    rows = []
    for task, draws in encoders.items():
        shared = min(len(draws), len(setfit.get(task, [])))
        same = mean(100 * np.array([draw["chosen"] for draw in draws[:shared]])) if shared else "–"
        by_setfit = [draw["right"] for draw in setfit.get(task, [])[:shared]]
        rows.append(
            (
                TITLES[f"jsonl:{task}"],
                *(mean(100 * np.array([draw[name] for draw in draws])) for name in names),
                mean(100 * np.array(by_setfit)) if shared else "–",
                same,
                shared,
            )
        )
    columns = (
        Column("Task"),
        *(Column(name, digits=1) for name in names.values()),
        *(Column("SetFit", digits=1), Column("Chosen, same draws", digits=1)),
        Column("Draws of SetFit"),
    )
    return Table("encoders", "Beside sentence encoders", columns, tuple(rows))


def verdicts_table(shown: Sequence[Shown]) -> Table:
    """A row per cell: base, TRACE and its verdict, the best correction, the best control."""
    columns = (
        *(Column("Set"), Column("Model"), Column("Items"), level("Base")),
        *(level("TRACE"), Column("Verdict"), Column("Best correction"), level("Corrected")),
        level("Best unread"),
    )
    return Table("verdicts", "Verdicts", columns, tuple(_verdict_row(one) for one in shown))


def _verdict_row(one: Shown) -> tuple[Value, ...]:
    s, j = one.summary, one.judgement
    name, own = one.best or ("", None)
    return (
        *(one.title, one.model, j.items, 100 * s.mc1_base, 100 * s.mc1),
        *(VERDICTS[j.finding], name, math.nan if own is None else 100 * own.mc1),
        100 * one.rival[1],
    )


def changes_table(shown: Sequence[Shown]) -> Table:
    """Answers fixed and broken in every cell: by TRACE, by the best correction, by the middle."""
    columns = (
        *(Column("Set"), Column("Model"), Column("TRACE"), Column("Best correction")),
        *(Column("Holm p"), Column("The middle adds"), Column("p")),
    )
    return Table("changes", "Fixed and broken", columns, tuple(_change_row(one) for one in shown))


def _change_row(one: Shown) -> tuple[Value, ...]:
    j, fit = one.judgement, one.controls.fit
    _, own = one.best or ("", None)
    return (
        *(one.title, one.model, f"{j.fixed} / {j.broken}"),
        *(("", "") if own is None else (f"{own.fixed} / {own.broken}", f"{own.p_holm:.2g}")),
        "" if fit is None else f"{fit.middle.fixed} / {fit.middle.broken}",
        "" if fit is None else f"{fit.middle.p:.2g}",
    )


VERDICTS = {
    "helps": "helps",
    "gains": "gains no more than unread",
    "hurts": "hurts",
    "unclear": "not shown",
}


def corrections_table(shown: Sequence[Shown]) -> Table:
    """MC1 of every correction in every cell, with a sign where Holm's test rejects."""
    columns = (Column("Set"), Column("Model"), level("Base"), level("Base, sums"))
    rows = []
    for one in shown:
        if not one.corrections:
            continue
        base = column(one.cell.items, "mc1_base")[one.cell.mc1_places]
        cells = [_signed(one.corrections.get(name)) for name in CORRECTIONS]
        rows.append((one.title, one.model, 100 * mean(base), 100 * bare(one), *cells))
    names = tuple(Column(name) for name in CORRECTIONS)
    return Table("corrections", "Corrections", (*columns, *names), tuple(rows))


def bare(one: Shown) -> float:
    """MC1 of the base by sums over tokens."""
    scores = sums(one.cell, blind=0.0)
    return _correction(one.cell, scores, list(one.cell.items["base_scores"])).mc1


def _signed(own: Correction | None) -> str:
    if own is None:
        return "–"
    marks = {"+": " ▲", "-": " ▼", "": ""}
    return f"{100 * own.mc1:.1f}{marks[own.sign]}"


WORDINGS = ("shortest", "longest", "question-blind", "anti-blind")


def wordings_table(shown: Sequence[Shown]) -> Table:
    """What never reads the question, beside the base."""
    columns = (
        *(Column("Set"), Column("Model"), level("Chance"), level("Base")),
        *(level(name.capitalize()) for name in WORDINGS),
        level("Fitted wording"),
    )
    return Table("wordings", "Wordings", columns, tuple(_wording_row(one) for one in shown))


def _wording_row(one: Shown) -> tuple[Value, ...]:
    c = one.controls
    return (
        *(one.title, one.model, 100 * c.chance, 100 * c.base),
        *(100 * c.wordings[name] for name in WORDINGS),
        math.nan if c.fit is None else 100 * c.fit.wording,
    )


def controls_table(shown: Sequence[Shown]) -> Table:
    """TRACE beside random flips, what reading and the middle add, and any depth."""
    columns = (
        *(Column("Set"), Column("Model"), level("TRACE"), Column("Flips"), delta("gain")),
        *(Column("P", 2, significant=True), Column("Reading adds"), Column("The middle adds")),
        *(level("Any depth"), level("Blind")),
    )
    return Table("controls", "Controls", columns, tuple(_control_row(one) for one in shown))


def _control_row(one: Shown) -> tuple[Value, ...]:
    c = one.controls
    added = (
        ["", ""]
        if c.fit is None
        else [f"{a.fixed} / {a.broken}" for a in (c.fit.reading, c.fit.middle)]
    )
    return (
        *(one.title, one.model, 100 * c.corrected),
        *(c.placebo.overrides, 100 * c.placebo.gain, c.placebo.p),
        *added,
        *(100 * c.oracle, 100 * c.blind_oracle),
    )


def peers_table(comparisons: Sequence[Comparison]) -> Table:
    """Every method against the base of its own aggregation; Holm's correction is over all rows."""
    rows = [(c, s) for c in comparisons for s in c.standings if s.base != s.method]
    fair = holm(np.array([s.against_base.p for _, s in rows]))
    columns = (Column("Benchmark"), Column("Items"), Column("Method"), level("MC1"))
    values: list[tuple[Value, ...]] = [
        (c.benchmark, s.items, s.method, 100 * s.mc1, 100 * s.delta_mc1)
        + (s.base, s.against_base.won, s.against_base.lost, s.against_base.p, float(p))
        for (c, s), p in zip(rows, fair, strict=True)
    ]
    values += [(c.benchmark, "", ORACLE, 100 * c.controls[ORACLE], *_NONE) for c in comparisons]
    against = (delta("Change"), Column("Against"), Column("Fixed"), Column("Broken"), *_P)
    return Table("peers", "All methods", (*columns, *against), tuple(values))


_NONE: tuple[Value, ...] = (math.nan, "", "", "", math.nan, math.nan)


def needs_table(shown: Sequence[Shown], name: str = "needs") -> Table:
    """Of each gain, how much the same rule gains with the question left out."""
    columns = (
        *(Column("Set"), Column("Model"), level("Base"), level("Base, blind"), delta("Gain")),
        *(delta("Gain, blind"), delta("Needs the question"), Column("95%")),
    )
    rows = [
        (one.title, one.model, 100 * one.summary.mc1_base, 100 * one.summary.blind)
        + (100 * gain.sighted, 100 * gain.blind, 100 * gain.needs, between(gain.interval))
        for one, gain in needs(shown)
    ]
    return Table(name, "Does it need the question?", columns, tuple(rows))


def choices_table(shown: Sequence[Shown]) -> Table:
    """How often a depth chooses the very candidate that it chooses without the question."""
    halves = (level("Same choice, L/2"), level("Same choice, L"))
    truths = (level("MC1 at L/2"), level("MC1 at L/2, blind"))
    rows = [_choices_row(one, one.dependence) for one in shown if one.dependence is not None]
    columns = (Column("Set"), Column("Model"), *halves, *truths)
    return Table("choices", "The same choice without the question", columns, tuple(rows))


def _choices_row(one: Shown, found: Dependence) -> tuple[Value, ...]:
    half, last = found.depth // 2, found.depth
    alike = [same(one.cell, depth) for depth in (half, last)]
    shares = (*alike, found.sighted[half], found.blind[half])
    return (one.title, one.model, *(100 * float(share) for share in shares))


def same(cell: Cell, depth: int) -> float:
    """Share of items whose top candidate at a depth is the one that is on top there blind."""
    read = (values(cell, name) for name in ("trajectory", "blind_trajectory"))
    tops = np.array([[np.stack(S)[:, depth].argmax() for S in one] for one in read])
    return float((tops[0] == tops[1])[cell.mc1_places].mean())


def values(cell: Cell, name: str) -> list[Any]:
    """A column that a cell does not hold in memory, a value an item."""
    found: list[Any] = [None] * len(cell.items)
    for places, frame in cell.slices(name):
        for place, value in zip(places, frame[name], strict=True):
            found[place] = value
    return found


def needs(shown: Sequence[Shown]) -> list[tuple[Shown, Gain]]:
    """TRACE's gain with the question and without, of the cells that were read both ways."""
    return [(one, one.dependence.gains[0]) for one in shown if one.dependence is not None]


def body(table: Table) -> str:
    """The table alone: the page has its own words."""
    return to_markdown(replace(table, notes=())).partition("\n\n")[2].strip()


def between(interval: Interval) -> str:
    """`+1.5 to +7.0`, in points."""
    return f"{points(interval.low)} to {points(interval.high)}"


def points(share: float) -> str:
    """`+5.9`, in points."""
    return "–" if math.isnan(share) else f"{100 * share:+.1f}".replace("-", "−")


# --- figures ------------------------------------------------------------------------------------


def gains(shown: Sequence[Shown]) -> Figure:
    """Fixed and broken answers as shares of the items, by benchmark."""
    names = tuple(f"{one.title}, {one.model}" for one in shown)
    fixed = tuple(100 * one.judgement.fixed / one.judgement.items for one in shown)
    broken = tuple(-100 * one.judgement.broken / one.judgement.items for one in shown)
    marks = (
        Bars(names, fixed, "truthful", "fixed", horizontal=True),
        Bars(names, broken, "winner", "broken", horizontal=True),
        Rule(0),
    )
    panel = Panel("", marks, "answers fixed and broken, % of the items")
    return Figure("evidence-gains", "Fixed and broken", "", (panel,), columns=1)


def depths(shown: Sequence[Shown]) -> Figure:
    """MC1 by depth with the question and without."""
    figure = dependence_figure(
        [
            replace(one.dependence, model=one.model, benchmark=one.title)
            for one in shown
            if one.dependence is not None
        ]
    )
    assert figure is not None
    return replace(figure, name="evidence-depths", panels=figure.panels[::2])
