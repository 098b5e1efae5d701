"""The page of the evidence: docs/evidence.md and its figures, from the stored records.

Its text is in `evidence.md.jinja`; every number comes from the records. The same numbers go to
`results/evidence.json`, which `recompute.py` checks against the records without using lastword.
"""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined, Template

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))


from lastword.files.strict_json import to_json
from lastword.lab.evaluation.controls import Controls, controls
from lastword.lab.evaluation.statistics import Interval, Judgement, judge
from lastword.lab.report import draw
from lastword.lab.report.comparison import ORACLE, Comparison, read_comparisons
from lastword.lab.report.dependence import Dependence, Gain, dependence
from lastword.lab.report.figures import model_name
from lastword.lab.report.table import Heading, ReportTable, Value, to_markdown
from lastword.methods import resolve
from lastword.model.embedded import EMBEDDED
from lastword.probes.controls import ALPHA, Addition
from lastword.records.cells import Cell, Summary, column, mean, read_cells, summarise
from lastword.records.derived import derive, facts_of
from lastword.records.info import find_cells, read_run
from lastword.records.metrics import Rows, fixed_and_broken, mc1_rows, of_items
from lastword.rule.theta import Theta
from lastword.trust.paired import mcnemar
from lastword.trust.testing import holm

level, delta = partial(Heading, form=".2f"), partial(Heading, form="+.2f")

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
RESULTS = HERE / "results" / "evidence.json"
FURTHER = HERE / "results" / "evidence.md"
PROMISED = HERE / "results" / "promised.json"  # of promised.py
PROBES = HERE / "results" / "probes"  # of probes.py
LABELS, MORE, NULL = "100", "200", ", labels permuted"
# Cells whose probe is at least ten points more accurate than the model, which half of 100 labels
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
# Each is compared with the base on the page: means over tokens.
CORRECTIONS = ("trace-gated", "pmi@0.25", "pmi@0.5", "pmi@1", "dcpmi", "batch-calibrated")
THETA = Theta()


@dataclass(frozen=True)
class Correction:
    """One correction on one cell.

    Attributes:
        mc1: Mean MC1.
        fixed: Items that the base gets wrong and the correction right.
        broken: Items that the base gets right and the correction wrong.
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
        """`+` or `-` if it gains or loses significantly after Holm's correction."""
        if not self.p_holm < 0.05:
            return ""
        return "+" if self.fixed > self.broken else "-"


@dataclass(frozen=True)
class Shown:
    """A cell with all of its statistics."""

    title: str
    cell: Cell
    summary: Summary
    judgement: Judgement
    dependence: Dependence | None
    controls: Controls
    corrections: dict[str, Correction]

    @property
    def model(self) -> str:
        """The model's name on the page."""
        return MODELS.get(self.cell.model, self.cell.model)

    @property
    def best(self) -> tuple[str, Correction] | None:
        """The correction that reads the question with the highest MC1, chosen after the fact."""
        rows = self.corrections.items()
        return max(rows, key=lambda row: row[1].mc1) if rows else None

    @property
    def rival(self) -> tuple[str, float]:
        """The best control that never reads the question."""
        defined = {name: share for name, share in self.controls.rivals.items() if share == share}
        return max(defined.items(), key=lambda row: row[1])


def write(records: Path) -> None:
    """Write the page, its figures and its numbers."""
    shown, bounds = read(records)
    (DOCS / "evidence.md").write_text(render(records, shown, bounds), encoding="utf-8")
    RESULTS.write_text(numbers([*shown, *bounds]), encoding="utf-8")
    FURTHER.write_text(further(records, shown, bounds), encoding="utf-8")
    with TemporaryDirectory() as folder:
        for figure in (depths(shown), gains(shown)):
            paths = draw.save(figure, Path(folder))
            svg = next(path for path in paths if path.suffix == ".svg")
            (DOCS / "images" / svg.name).write_bytes(svg.read_bytes())


def page(records: Path) -> str:
    """Return the page as text."""
    return render(records, *read(records))


def render(records: Path, shown: Sequence[Shown], bounds: Sequence[Shown]) -> str:
    """Return the page of these cells."""
    promised = json.loads(PROMISED.read_text(encoding="utf-8"))
    tables = [
        labels_table({name: cell for name, cell in promised.items() if not _asks_knowledge(name)}),
        encoders_table(),
    ]
    return _template("evidence.md.jinja").render(
        tables={table.name: body(table) for table in tables},
        shown=shown,
        bounds={one.cell.model.removeprefix(EMBEDDED): one for one in bounds},
        counts=counts(shown),
        percent=lambda share: f"{100 * share:.1f}",
        promises=_promises(promised),
        unproved=_unproved(promised),
        run=read_run(next(cell for cell in find_cells(records) if cell.name == "truthfulqa")),
    )


def further(records: Path, shown: Sequence[Shown], bounds: Sequence[Shown]) -> str:
    """Return the tables that the page leaves out, as Markdown."""
    compared = read_comparisons(records / "peers", cells_of(records / "peers"))
    compared += read_comparisons(
        records / "own", [c for c in cells_of(records / "own") if not is_bound(c)]
    )
    promised = json.loads(PROMISED.read_text(encoding="utf-8"))
    tables = [
        labels_table({name: cell for name, cell in promised.items() if _asks_knowledge(name)}),
        rivals_table(),
        verdicts_table(shown),
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


def _asks_knowledge(name: str) -> bool:
    """Return whether a cell, named by model and task, asks for knowledge of the world."""
    return name.endswith(("csqa", "arc"))


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
        "ten": sum(entry["true gain"] >= 10 for entry in drawn),
        "draws": min(entry["draws"] for entry in drawn),
        "worst": max(entry["worse"] for entry in drawn),
        "null": mean(np.array([entry["on"] for entry in null])),
    }


def _unproved(promised: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return, by labels, how often and how much the cells gain whose probe is seldom proved."""
    sizes = (LABELS, MORE)
    drawn = [promised[name]["drawn"][""] for name in UNPROVED]
    by_size = {n: [cell[n]["gain"] for cell in drawn if n in cell] for n in sizes}
    return {n: [(c["on"], c["true gain"]) for c in cells] for n, cells in by_size.items()}


def counts(shown: Sequence[Shown]) -> dict[str, list[Shown]]:
    """Return cells by verdict, and further selections for the summary."""
    by = {name: [one for one in shown if one.judgement.finding == name] for name in FINDINGS}
    return by | {
        "corrected": [one for one in shown if any(c.sign == "+" for c in one.corrections.values())],
        "beaten": [one for one in shown if _beats(one)],
        "middle": _middle(shown),
        "reading": [
            one for one in shown if one.controls.fit and positive(one.controls.fit.reading)
        ],
        "fits": [one for one in shown if one.controls.fit],
        "harmed": [one for one in shown if any(c.sign == "-" for c in one.corrections.values())],
    }


def _middle(shown: Sequence[Shown]) -> list[Shown]:
    """Return cells in which the middle adds information after Holm's correction."""
    rows = [(one, one.controls.fit.middle) for one in shown if one.controls.fit is not None]
    fair = holm(np.array([added.p for _, added in rows]))
    pairs = zip(rows, fair, strict=True)
    return [one for (one, added), p in pairs if positive(added) and p < 0.05]


FINDINGS = ("helps", "gains", "hurts", "unclear")


def _beats(one: Shown) -> bool:
    """Return True if a correction gains significantly and is better than all controls."""
    gains = [c.mc1 for c in one.corrections.values() if c.sign == "+"]
    return bool(gains) and max(gains) > one.rival[1]


def read(records: Path) -> tuple[list[Shown], list[Shown]]:
    """Return the real models' cells, judged together, and those of the embedded models."""
    named = [(root, cell) for root in roots(records) for cell in cells_of(root)]
    named = [(root, cell) for root, cell in named if root.name != "peers"]
    bounds = [(root, cell) for root, cell in named if is_bound(cell)]
    real = [
        (
            root,
            Cell({**cell.info, "benchmark": "chat"}, cell.parts) if root.name == "chat" else cell,
        )
        for root, cell in named
        if not is_bound(cell)
    ]
    real.sort(key=lambda pair: _order(pair[1]))
    return judged(real), judged(bounds)


def _order(cell: Cell) -> tuple[int, int]:
    return list(TITLES).index(cell.benchmark), list(MODELS).index(cell.model)


def is_bound(cell: Cell) -> bool:
    """Return True if the cell's model is no evidence, but a lower bound."""
    return cell.model.startswith(EMBEDDED) or cell.model.endswith("stories260K")


def judged(named: Sequence[tuple[Path, Cell]]) -> list[Shown]:
    """Return cells with their statistics; Holm's correction covers all of their tests."""
    beside = [controls(cell) for _, cell in named]
    rows = [corrections(root, cell) for root, cell in named]
    tests = [(i, name, entry.p) for i, row in enumerate(rows) for name, entry in row.items()]
    others = [p for *_, p in tests]
    objections = [entry.objection for entry in beside]
    verdicts = judge([cell for _, cell in named], objections, others)
    together = holm(np.array([*others, *(entry.p for entry in verdicts)]))
    fair = {(i, name): float(p) for (i, name, _), p in zip(tests, together, strict=False)}
    return [
        Shown(
            TITLES.get(cell.benchmark, cell.benchmark),
            cell,
            summarise(cell),
            verdicts[i],
            dependence(cell, THETA),
            beside[i],
            {n: replace(entry, p_holm=fair[i, n]) for n, entry in rows[i].items()},
        )
        for i, (_, cell) in enumerate(named)
    ]


def corrections(root: Path, cell: Cell) -> dict[str, Correction]:
    """Return the figures of each correction that applies to a cell."""
    if np.isnan(cell.scores["blind_t_scores"]).any():
        return {}
    run = next(
        info
        for info in map(read_run, find_cells(root))
        if (info["model"], info["benchmark"]) == (cell.model, cell.benchmark)
    )
    names = [name for name in CORRECTIONS if name != "dcpmi"]
    scores = derive(cell, resolve(names, facts_of(run)))
    if len({tuple(sorted(texts)) for texts in values(cell, "candidates")}) > 1:
        del scores["batch-calibrated"]  # the items share no label set
    base = cell.scores["base_scores"]
    figures = {name: _correction(cell, u, base) for name, u in scores.items()}
    if root.name == "jobs":  # elsewhere tokens of a candidate may differ after the blind prompt
        figures["dcpmi"] = _correction(cell, sums(cell, blind=1.0), base)
    return {name: figures[name] for name in CORRECTIONS if name in figures}


def sums(cell: Cell, *, blind: float) -> Rows:
    """Return sums over tokens of b - blind * q; labels have equal tokens after both prompts."""
    b, q = (np.where(cell.present, cell.scores[n], 0.0) for n in ("base_scores", "blind_scores"))
    tokens = values(cell, "candidate_tokens")
    sums = np.full(b.shape, -np.inf)
    sums[cell.present] = (b - blind * q)[cell.present] * np.concatenate(tokens)
    return sums


def _correction(cell: Cell, scores: Rows, base: Rows) -> Correction:
    """Compare a correction's answers with the base's; items without scores count as the base."""
    both = base, np.where(np.isnan(scores), base, scores)
    before, after = (of_items(mc1_rows, u, cell.truthful)[cell.mc1_places] for u in both)
    fixed, broken = fixed_and_broken(after - before)
    return Correction(mean(after), fixed, broken, mcnemar(fixed, broken))


def numbers(shown: Sequence[Shown]) -> str:
    """Return every number of the first tables, by cell, for checks by another program."""
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
            "controls": asdict(one.controls),
            "corrections": {name: vars(correction) for name, correction in one.corrections.items()},
        }
        for one in shown
    ]
    return json.dumps(json.loads(to_json(rows)), indent=1) + "\n"


def roots(records: Path) -> list[Path]:
    return sorted(path for path in records.iterdir() if path.is_dir())


def cells_of(root: Path) -> list[Cell]:
    return read_cells(Path(root))


# --- tables -------------------------------------------------------------------------------------

_P = (Heading("p", ".2g"), Heading("Holm p", ".2g"))


def labels_table(promised: dict[str, Any]) -> ReportTable:
    """Return what 100 labels certify, one row per set and model."""
    columns = (
        *(
            Heading("Task"),
            Heading("Model"),
            level("Model alone"),
            Heading("Corrections, certified"),
        ),
        *(Heading("With a probe, certified"), Heading("On"), Heading("At least")),
        Heading("Bag of words"),
    )
    files = {key: PROBES / f"{key}.json" for key in (Path(model).name for model in MODELS)}
    probed = {key: json.loads(path.read_text("utf-8"))["sets"] for key, path in files.items()}
    entries = [
        (title, shown, promised[f"{key}, {name}"], _words(probed[key].get(name)))
        for benchmark, title in TITLES.items()
        for key, shown in zip(files, MODELS.values(), strict=True)
        for name in [benchmark.removeprefix("jsonl:")]
        if f"{key}, {name}" in promised
    ]
    rows = tuple(_labels_row(*entry) for entry in entries)
    return ReportTable("labels", "What 100 labels buy", columns, rows)


def _labels_row(title: str, model: str, cell: dict[str, Any], words: str) -> tuple[Value, ...]:
    drawn = cell["drawn"][""][LABELS]
    alone, gain = drawn["gain, corrections alone"], drawn["gain"]
    base = 100 * cell["base"]
    least = "–" if gain["at least"] is None else f"{gain['at least']:+.1f}"
    return (
        *(title, model, base, f"{base + alone['true gain']:.1f}"),
        *(f"{base + gain['true gain']:.1f}", f"{gain['on']:.0%}", least, words),
    )


def _words(drawn: dict[str, Any] | None) -> str:
    """Return the accuracy of a bag of words, if all texts have the same options."""
    if drawn is None:
        return "–"
    return f"{100 * mean(np.array([draw['words'] for draw in drawn[LABELS]])):.1f}"


def encoders_table() -> ReportTable:
    """Return accuracy with 100 labels beside sentence encoders, from encoders.py."""
    names = {
        "words": "Bag of words",
        "probe": "Probe",
        "minilm": "MiniLM",
        "mpnet": "mpnet",
        "probe and mpnet, side": "Probe and mpnet",
        "cheapest": "Chosen",
    }
    rows = tuple(
        (TITLES[f"jsonl:{task}"], *(_right(draws, name) for name in names))
        for task, draws in _draws("encoders-smollm2-135m").items()
    )
    columns = Heading("Task"), *(Heading(name, ".1f") for name in names.values())
    return ReportTable("encoders", "Beside sentence encoders", columns, rows)


def rivals_table() -> ReportTable:
    """Return accuracy and cost of SetFit and brier on draws of encoders.py, from rivals.py."""
    rivals, ours = ("SetFit", "brier"), _draws("encoders-smollm2-135m")
    rows = []
    for task, draws in ours.items():
        if task not in _draws("brier"):
            continue  # about one label per class: neither tool is made for that
        row: list[Value] = [TITLES[f"jsonl:{task}"]]
        for rival in rivals:
            theirs = _draws(rival.lower()).get(task, [])[: len(draws)]
            same = draws[: len(theirs)]
            row += [len(theirs), _right(theirs, "right"), _right(same, "cheapest")]
            row += [float(np.mean([one["cpu_s"] for one in theirs])) if theirs else "–"]
        rows.append(tuple(row))
    columns = (
        Heading("Task"),
        *(
            column
            for rival in rivals
            for column in (
                Heading(f"Draws of {rival}"),
                Heading(rival, ".1f"),
                Heading("Chosen", ".1f"),
                Heading("CPU s", ".0f"),
            )
        ),
    )
    return ReportTable("rivals", "Beside SetFit and brier", columns, tuple(rows))


def _draws(file: str) -> dict[str, list[dict[str, Any]]]:
    """Return the draws of a result of experiments/results/probes, by task."""
    draws: dict[str, list[dict[str, Any]]] = json.loads(
        (PROBES / f"{file}.json").read_text(encoding="utf-8")
    )
    return draws


def _right(draws: Sequence[dict[str, Any]], name: str) -> float | str:
    """Return a mean accuracy in percent."""
    return mean(100 * np.array([draw[name] for draw in draws])) if draws else "–"


def verdicts_table(shown: Sequence[Shown]) -> ReportTable:
    """Return a row per cell: base, TRACE and its verdict, best correction, best control."""
    columns = (
        *(Heading("Set"), Heading("Model"), Heading("Items"), level("Base")),
        *(level("TRACE"), Heading("Verdict"), Heading("Best correction"), level("Corrected")),
        level("Best unread"),
    )
    return ReportTable("verdicts", "Verdicts", columns, tuple(_verdict_row(one) for one in shown))


def _verdict_row(one: Shown) -> tuple[Value, ...]:
    s, j = one.summary, one.judgement
    name, correction = one.best or ("", None)
    return (
        *(one.title, one.model, j.items, 100 * s.mc1_base, 100 * s.mc1),
        *(VERDICTS[j.finding], name, math.nan if correction is None else 100 * correction.mc1),
        100 * one.rival[1],
    )


def changes_table(shown: Sequence[Shown]) -> ReportTable:
    """Return answers fixed and broken by TRACE, by the best correction, and by the middle."""
    columns = (
        *(Heading("Set"), Heading("Model"), Heading("TRACE"), Heading("Best correction")),
        *(Heading("Holm p"), Heading("The middle adds"), Heading("p")),
    )
    return ReportTable(
        "changes", "Fixed and broken", columns, tuple(_change_row(one) for one in shown)
    )


def _change_row(one: Shown) -> tuple[Value, ...]:
    j, fit = one.judgement, one.controls.fit
    _, correction = one.best or ("", None)
    return (
        *(one.title, one.model, f"{j.fixed} / {j.broken}"),
        *(
            ("", "")
            if correction is None
            else (f"{correction.fixed} / {correction.broken}", f"{correction.p_holm:.2g}")
        ),
        "" if fit is None else f"{fit.middle.fixed} / {fit.middle.broken}",
        "" if fit is None else f"{fit.middle.p:.2g}",
    )


VERDICTS = {
    "helps": "helps",
    "gains": "gains no more than unread",
    "hurts": "hurts",
    "unclear": "not shown",
}


def corrections_table(shown: Sequence[Shown]) -> ReportTable:
    """Return MC1 of every correction in every cell, with a sign if Holm's test rejects."""
    columns = (Heading("Set"), Heading("Model"), level("Base"), level("Base, sums"))
    rows = []
    for one in shown:
        if not one.corrections:
            continue
        base = column(one.cell.items, "mc1_base")[one.cell.mc1_places]
        cells = [_signed(one.corrections.get(name)) for name in CORRECTIONS]
        rows.append((one.title, one.model, 100 * mean(base), 100 * bare(one), *cells))
    names = tuple(Heading(name) for name in CORRECTIONS)
    return ReportTable("corrections", "Corrections", (*columns, *names), tuple(rows))


def bare(one: Shown) -> float:
    """Return MC1 of the base by sums over tokens."""
    scores = sums(one.cell, blind=0.0)
    return _correction(one.cell, scores, one.cell.scores["base_scores"]).mc1


def _signed(correction: Correction | None) -> str:
    if correction is None:
        return "–"
    marks = {"+": " ▲", "-": " ▼", "": ""}
    return f"{100 * correction.mc1:.1f}{marks[correction.sign]}"


WORDINGS = ("shortest", "longest", "question-blind", "anti-blind")


def wordings_table(shown: Sequence[Shown]) -> ReportTable:
    """Return the controls that never read the question, and the base."""
    columns = (
        *(Heading("Set"), Heading("Model"), level("Chance"), level("Base")),
        *(level(name.capitalize()) for name in WORDINGS),
        level("Fitted wording"),
    )
    return ReportTable("wordings", "Wordings", columns, tuple(_wording_row(one) for one in shown))


def _wording_row(one: Shown) -> tuple[Value, ...]:
    c = one.controls
    return (
        *(one.title, one.model, 100 * c.chance, 100 * c.base),
        *(100 * c.wordings[name] for name in WORDINGS),
        math.nan if c.fit is None else 100 * c.fit.wording,
    )


def controls_table(shown: Sequence[Shown]) -> ReportTable:
    """Return TRACE and random flips, the gains of reading and of the middle, and any depth."""
    columns = (
        *(Heading("Set"), Heading("Model"), level("TRACE"), Heading("Flips"), delta("gain")),
        *(Heading("P", ".2g"), Heading("Reading adds"), Heading("The middle adds")),
        *(level("Any depth"), level("Blind")),
    )
    return ReportTable("controls", "Controls", columns, tuple(_control_row(one) for one in shown))


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


def peers_table(comparisons: Sequence[Comparison]) -> ReportTable:
    """Compare every method with the base of its aggregation; Holm's correction covers all rows."""
    rows = [(c, s) for c in comparisons for s in c.standings if s.base != s.method]
    fair = holm(np.array([s.against_base.p for _, s in rows]))
    columns = (Heading("Benchmark"), Heading("Items"), Heading("Method"), level("MC1"))
    values: list[tuple[Value, ...]] = [
        (c.benchmark, s.items, s.method, 100 * s.mc1, 100 * s.delta_mc1)
        + (s.base, s.against_base.won, s.against_base.lost, s.against_base.p, float(p))
        for (c, s), p in zip(rows, fair, strict=True)
    ]
    values += [(c.benchmark, "", ORACLE, 100 * c.controls[ORACLE], *_NONE) for c in comparisons]
    against = (delta("Change"), Heading("Against"), Heading("Fixed"), Heading("Broken"), *_P)
    return ReportTable("peers", "All methods", (*columns, *against), tuple(values))


_NONE: tuple[Value, ...] = (math.nan, "", "", "", math.nan, math.nan)


def needs_table(shown: Sequence[Shown], name: str = "needs") -> ReportTable:
    """Return how much of each gain the same rule has without the question."""
    columns = (
        *(Heading("Set"), Heading("Model"), level("Base"), level("Base, blind"), delta("Gain")),
        *(delta("Gain, blind"), delta("Needs the question"), Heading("95%")),
    )
    rows = [
        (
            one.title,
            one.model,
            100 * one.summary.mc1_base,
            100 * one.cell.wordings["question-blind"],
        )
        + (100 * gain.sighted, 100 * gain.blind, 100 * gain.needs, between(gain.interval))
        for one, gain in needs(shown)
    ]
    return ReportTable(name, "Does it need the question?", columns, tuple(rows))


def choices_table(shown: Sequence[Shown]) -> ReportTable:
    """Return how often a depth chooses the same candidate with and without the question."""
    halves = (level("Same choice, L/2"), level("Same choice, L"))
    truths = (level("MC1 at L/2"), level("MC1 at L/2, blind"))
    rows = [_choices_row(one, one.dependence) for one in shown if one.dependence is not None]
    columns = (Heading("Set"), Heading("Model"), *halves, *truths)
    return ReportTable("choices", "The same choice without the question", columns, tuple(rows))


def _choices_row(one: Shown, result: Dependence) -> tuple[Value, ...]:
    half, last = (len(result.sighted) - 1) // 2, len(result.sighted) - 1
    alike = [same(one.cell, depth) for depth in (half, last)]
    shares = (*alike, result.sighted[half], result.blind[half])
    return (one.title, one.model, *(100 * float(share) for share in shares))


def same(cell: Cell, depth: int) -> float:
    """Return the share of items whose top candidate at a depth is the same without question."""
    read = (values(cell, name) for name in ("trajectory", "blind_trajectory"))
    tops = np.array([[np.stack(S)[:, depth].argmax() for S in one] for one in read])
    return float((tops[0] == tops[1])[cell.mc1_places].mean())


def values(cell: Cell, name: str) -> list[Any]:
    """Return one value per item of a column that is not in memory."""
    return [value for frame in cell.frames(name) for value in frame[name]]


def needs(shown: Sequence[Shown]) -> list[tuple[Shown, Gain]]:
    """Return TRACE's gain with and without the question, for cells with both readings."""
    return [(one, one.dependence.gains[0]) for one in shown if one.dependence is not None]


def body(table: ReportTable) -> str:
    """Return the table without notes: the page has its own text."""
    return to_markdown(replace(table, notes=())).partition("\n\n")[2].strip()


def between(interval: Interval) -> str:
    """Return an interval like `+1.5 to +7.0`, in points."""
    return f"{points(interval.low)} to {points(interval.high)}"


def positive(added: Addition) -> bool:
    """Return True if a fit fixes significantly more answers than it breaks."""
    return added.fixed > added.broken and added.p < ALPHA


def points(share: float) -> str:
    """Return a share like `+5.9`, in points."""
    return "–" if math.isnan(share) else f"{100 * share:+.1f}".replace("-", "−")


# --- figures ------------------------------------------------------------------------------------


@draw.styled
def gains(shown: Sequence[Shown]) -> draw.Figure:
    """Return the figure of fixed and broken answers in percent of the items, by benchmark."""
    names = [f"{one.title}, {one.model}" for one in shown]
    fixed = [100 * one.judgement.fixed / one.judgement.items for one in shown]
    broken = [-100 * one.judgement.broken / one.judgement.items for one in shown]
    canvas, (axes,) = draw.canvas(0, wide=[draw.bars_inches(len(names))])
    draw.label(axes, "", "answers fixed and broken, % of the items")
    draw.rule(axes, 0)
    draw.bars(axes, names, {"fixed": ("truthful", fixed)}, horizontal=True)
    draw.bars(axes, names, {"broken": ("winner", broken)}, horizontal=True)
    return draw.Figure("evidence-gains", "Fixed and broken", "", canvas)


@draw.styled
def depths(shown: Sequence[Shown]) -> draw.Figure:
    """Return the figure of MC1 by depth, with and without the question."""
    compared = [(one, one.dependence) for one in shown if one.dependence is not None]
    canvas, panels = draw.canvas(len(compared), columns=2)
    for axes, (one, both) in zip(panels, compared, strict=True):
        higher = bool(both.sighted[-1] >= both.blind[-1])
        title = f"{model_name(one.model)}\n{one.title}, {both.items} items"
        draw.label(axes, title, "depth", "MC1, points")
        x = range(len(both.sighted))
        draw.line(axes, x, 100 * both.blind, "other", "blind", above=not higher)
        draw.line(axes, x, 100 * both.sighted, "corrected", "read", above=higher)
    return draw.Figure("evidence-depths", "MC1 by depth", "", canvas)
