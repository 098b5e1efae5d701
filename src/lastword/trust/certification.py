"""Certification: the labelled items that records hold, and the certificate that they earn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from lastword.errors import InputError, RecordError
from lastword.files.folder import Folder
from lastword.files.rows import read_objects
from lastword.records.cells import Cell, confidence
from lastword.records.info import RunInfo, find_cells, read_run
from lastword.records.parts import missing_places
from lastword.records.ragged import Lists, PerItem
from lastword.records.recheck import recheck
from lastword.records.stored import read_cells
from lastword.rule.geometry import Scores, margins
from lastword.text.prompt_template import template_name
from lastword.trust.certificate import Baseline, Certificate, CertifiedProbe, Counts, Subject
from lastword.trust.claims import Beside, Finding, certify, gain_over
from lastword.trust.drift import LIKENESS, rounded, statistics
from lastword.trust.evidence import GroupEvidence
from lastword.trust.labelled import Labelled
from lastword.trust.other_methods import Means, allowed, answers, beside, means, resolved, shown
from lastword.trust.policy import (
    BATCH,
    CERTIFIABLE,
    GATED,
    OVERRIDING,
    TRACE,
    Policy,
    ScalarOperator,
    scalar_operator,
)
from lastword.trust.record_groups import groups
from lastword.trust.terms import Terms

if TYPE_CHECKING:
    import pandas as pd

OF_RECORDS = ("truth", "answer", "group", "benchmark")  # what slices go by without a file

# Values of a statistic that a certificate carries; more are drawn from, without replacement.
_REFERENCE = 1000


@dataclass(frozen=True, eq=False)
class Sample:
    """The labelled items of one model, and what they are a sample of.

    Attributes:
        scalar: The model's operator in the scalar regime.
        benchmarks: Fingerprint of the items by benchmark.
        failed: Items that were not answered: each counts as broken.
        reference: Values of each statistic, for drift.
        methods: What a policy may be of.
        means: What batch calibration learns of them without their labels, by label set.
        run: The `run.json` of one of them.
    """

    items: Labelled
    scalar: ScalarOperator
    subject: Subject
    benchmarks: Mapping[str, str]
    templates: tuple[str, ...]
    versions: Mapping[str, str]
    failed: int
    reference: Mapping[str, tuple[float, ...]]
    cells: tuple[Cell, ...]
    methods: tuple[str, ...]
    means: Means
    run: Mapping[str, Any]

    def shown(self, policy: Policy) -> tuple[list[Scores], list[int]]:
        """Return what a policy shows of items of one truth: their scores, and the truth's place."""
        methods = (policy.method,)
        return shown(
            self.items, self.cells, resolved(self.cells, self.run, methods, self.means), policy
        )


def read_sample(
    path: Folder, benchmarks: Sequence[str] = (), methods: Sequence[str] | None = (TRACE,)
) -> Sample:
    """Read the labelled items at or under a path.

    Args:
        path: A cell's folder, or any folder above.
        benchmarks: Whose items are taken together; one alone needs no name.
        methods: What a policy may be of; None for all that the records allow.

    Raises:
        RecordError: No records, of several models, of benchmarks that were not named, not
            finished, made under a certificate, or a record that does not follow from its
            trajectory.
    """
    runs = {folder: read_run(folder) for folder in find_cells(path)}
    runs = _chosen(runs, path, benchmarks)
    subject = Subject.of(next(iter(runs.values())))
    for run in runs.values():
        if Subject.of(run) != subject:
            raise RecordError(
                f"{_name(run)} has another Theta, chat template or weights than the others of "
                f"{path}; certify each by itself"
            )
    parted = [cell for folder in runs for cell in read_cells(folder)]
    return sample_of(parted, list(runs.values()), methods)


def sample_of(
    parted: Sequence[Cell], runs: Sequence[RunInfo], methods: Sequence[str] | None = None
) -> Sample:
    """Return the sample of labelled items in cells of one model, on disk or in memory.

    Args:
        parted: The cells.
        runs: The `run.json` of each.
        methods: The methods that a policy may be of; None for all that the records allow.

    Raises:
        RecordError: A record that does not follow from its trajectory.
    """
    first = runs[0]
    subject, invariant = Subject.of(first), float(first["invariant"])
    for cell in parted:
        recheck(cell, subject.theta, invariant, int(first["depth"]))
    scalar = scalar_operator(invariant, subject.theta.tau_I)
    names = allowed(parted, CERTIFIABLE) if methods is None else tuple(methods)
    batch_means = means(parted) if any(name.startswith(BATCH) for name in names) else {}
    others = resolved(parted, first, names, batch_means)
    items = labelled([cell.mc1_items for cell in parted], groups(parted))
    return Sample(
        items=replace(items, others=answers(items, parted, others)),
        scalar=scalar,
        subject=subject,
        benchmarks={run["benchmark"]: run["dataset"]["fingerprint"] for run in runs},
        templates=tuple(dict.fromkeys(template_name(run["template"]) for run in runs)),
        versions=first["packages"],
        failed=sum(cell.failed for cell in parted),
        reference=_reference(parted, scalar),
        cells=tuple(parted),
        methods=names,
        means=batch_means,
        run=first,
    )


def slice_names(cells: Sequence[Cell], by: str, items: Path | None = None) -> list[str]:
    """Return the slice of each item that counts for MC1.

    Args:
        cells: Of the items.
        by: `truth`, the text of the (first) true candidate; `answer`, the model's own; `group`;
            `benchmark`; or a field of the items' file.
        items: The file that the items came from, for such a field; rows are found by id.

    Raises:
        InputError: A field without a file, a file that cannot be read, or rows that share an id.
        RecordError: An item names no group, or the file has no such field of it.
    """
    if by in OF_RECORDS and items is None:
        return [name for cell in cells for name in _slice_names(cell, by)]
    if items is None:
        raise InputError(
            f"--by takes {', '.join(OF_RECORDS)}, or a field of the items: give their file by "
            f"--items to look at each {by}"
        )
    values = _values(items, by)
    names = [str(name) for cell in cells for name in cell.mc1_items["id"]]
    if len(set(names)) < len(names):
        raise RecordError("items of several benchmarks share their ids; name one by --benchmark")
    unnamed = [name for name in names if name not in values]
    if unnamed:
        raise RecordError(
            f"{items} says no {by} of item {unnamed[0]}: give it one, or name another field"
        )
    return [values[name] for name in names]


def _values(items: Path, name: str) -> dict[str, str]:
    """Return a field of a file's rows by id; by place for rows without one."""
    values: dict[str, str] = {}
    ids: set[str] = set()
    for place, row in enumerate(read_objects(items)):
        id = row.get("id")
        value = str(place if id is None else id)
        if value in ids:
            raise InputError(f"two rows of {items} have the id {value}; give each its own")
        ids.add(value)
        if row.get(name) is not None:
            values[value] = str(row[name])
    return values


def _slice_names(cell: Cell, by: str) -> list[str]:
    if by == "benchmark":
        return [cell.benchmark] * len(cell.mc1_places)
    names: dict[int, str] = {}
    for items, frame in cell.slices("id", "candidates", "truthful", "base_index", "shared"):
        for place, row in zip(items.tolist(), frame.to_dict("records"), strict=True):
            if by == "group" and not isinstance(row.get("shared"), str):
                raise RecordError(
                    f"item {row['id']} names no group: give one to each item, or --by truth"
                )
            index = row["base_index"] if by == "answer" else list(row["truthful"]).index(True)
            names[place] = row["shared"] if by == "group" else str(row["candidates"][int(index)])
    return [names[place] for place in cell.mc1_places.tolist()]


def labelled(
    frames: "Sequence[pd.DataFrame]", groups: Int[np.ndarray, " items"] | None = None
) -> Labelled:
    """Return the records that count for MC1 as labelled items.

    Args:
        frames: Of one cell each.
        groups: Number of each item's group; None where each stands by itself.
    """

    def joined(name: str) -> np.ndarray:
        return np.concatenate([frame[name].to_numpy() for frame in frames])

    def each(value: Callable[..., PerItem], name: str) -> np.ndarray:
        return np.concatenate([Lists.of(frame[name]).each(value) for frame in frames])

    return Labelled(
        mc1_base=joined("mc1_base").astype(float),
        mc1=joined("mc1").astype(float),
        overrides=joined("index") != joined("base_index"),
        operators=joined("operator").astype(str),
        margins=each(lambda u: margins(u[:, :, None])[:, 0], "scores"),
        base_confidence=each(confidence, "base_scores"),
        confidence=each(confidence, "scores"),
        groups=np.arange(sum(map(len, frames))) if groups is None else groups,
    )


@dataclass(frozen=True, eq=False)
class Outcome:
    """Finding of a sample under some terms, beside it what never reads the question.

    Attributes:
        controls: What is certified of each control by the same test.
        questions: Digests of the questions that the items ask, where these are known.
        probe: What names the probe, where one is certified.
        likeness: Of the items that judged it, by the probe; none where it reads no state.
        baselines: The chosen policy against each baseline, by its name.
    """

    sample: Sample
    finding: Finding
    controls: Beside
    questions: tuple[str, ...] = ()
    probe: CertifiedProbe | None = None
    likeness: tuple[float, ...] = ()
    baselines: Mapping[str, GroupEvidence] = field(default_factory=dict)

    @property
    def over_baselines(self) -> float | None:
        """The lower bound of the gain over the best baseline; None if none is proven."""
        chosen, terms = self.finding.chosen, self.finding.terms
        return None if chosen is None else gain_over(chosen, [*self.baselines.values()], terms)

    @property
    def rivals(self) -> tuple[str, ...]:
        """Controls that are worth as much by the same test; none where nothing is certified."""
        trial = self.finding.chosen
        return () if trial is None else tuple(self.controls.rivals(trial.gain))

    @property
    def certificate(self) -> Certificate:
        """Issue the certificate of the finding, made now."""
        sample, finding, deferral = self.sample, self.finding, self.finding.deferral
        method, watched = finding.policy.method, sample.reference
        if self.probe is not None:
            some = np.random.default_rng(0).permutation(self.likeness)[:_REFERENCE].tolist()
            watched = {LIKENESS: tuple(map(rounded, some))} if some else {}
        elif method not in (TRACE, GATED):  # the base alone is what others read of an item
            watched = {n: values for n, values in watched.items() if n == "confidence"}
        answers: dict[str, Any] = {}
        if deferral is not None:
            answers = {"threshold": deferral.threshold, "answered": deferral.groups}
            answers |= {"wrong": deferral.rate}
        return Certificate.of(
            sample.subject,
            finding,
            benchmarks=sample.benchmarks,
            templates=sample.templates,
            versions=sample.versions,
            reference=watched,
            means=sample.means if method.startswith(BATCH) else {},
            questions=self.questions,
            probe=self.probe,
            baselines=self._baselines,
            **answers,
        )

    @property
    def _baselines(self) -> tuple[Baseline, ...] | None:
        counts = {name: Counts(**vars(evidence)) for name, evidence in self.baselines.items()}
        return tuple(Baseline(*pair) for pair in counts.items()) or None


def outcome(sample: Sample, terms: Terms, questions: tuple[str, ...] = ()) -> Outcome:
    """Test the methods of a sample, and the controls in the same test.

    Raises:
        InputError: Fewer groups than any policy could pass with.
    """
    finding = certify(
        sample.items, sample.scalar, replace(terms, methods=sample.methods), sample.failed
    )
    controls = beside(finding, sample.items, sample.cells, sample.scalar)
    return Outcome(sample, finding, controls, questions)


def _chosen(
    runs: Mapping[Folder, Any], path: Folder, benchmarks: Sequence[str]
) -> dict[Folder, Any]:
    """Return the complete runs of one model, on the named benchmarks."""
    models = list(dict.fromkeys(run["model"] for run in runs.values()))
    if len(models) > 1:
        raise RecordError(
            f"{path} holds records of {' and '.join(models)}; a certificate is for one model: "
            "name its own folder"
        )
    there = [run["benchmark"] for run in runs.values()]
    absent = [name for name in benchmarks if name not in there]
    if absent:
        raise RecordError(f"{path} has no records of {absent[0]}; it has {', '.join(there)}")
    if not benchmarks and len(there) > 1:
        raise RecordError(
            f"{path} holds {', '.join(there)}; name those to take together by --benchmark"
        )
    names = benchmarks or there
    cells = {folder: run for folder, run in runs.items() if run["benchmark"] in names}
    for folder, run in cells.items():
        _require_whole(folder, run)
    return cells


def _require_whole(folder: Folder, run: Any) -> None:
    if run.get("certificate") is not None:
        raise RecordError(
            f"{_name(run)} was run under a certificate, which hides what TRACE wanted; "
            "run `lastword eval` without one"
        )
    if (name := run.get("correction")) is not None:
        raise RecordError(
            f"{_name(run)} was decided by {name}, which hides what TRACE wanted; run "
            f"`lastword eval` without --correction, and certify with --methods {name}"
        )
    if missing := missing_places(folder):
        raise RecordError(
            f"{_name(run)} is not finished: {len(missing)} of {run['items']} items are "
            "missing; start `lastword eval` again"
        )


def _name(run: Any) -> str:
    return f"{run['model']} on {run['benchmark']}"


def _reference(parted: Sequence[Cell], scalar: ScalarOperator) -> dict[str, tuple[float, ...]]:
    """Values of what is watched, of at most so many items, as they stand in a file."""
    places = [cell.answer_places[cell.mc1_places] for cell in parted]
    number, place = np.repeat(np.arange(len(parted)), [*map(len, places)]), np.concatenate(places)
    if len(place) > _REFERENCE:
        sample = np.sort(np.random.default_rng(0).choice(len(place), _REFERENCE, replace=False))
        number, place = number[sample], place[sample]
    frames = [cell.whole(place[number == n]) for n, cell in enumerate(parted)]
    rows: list[Any] = [row for frame in frames for row in frame.to_dict("records")]
    watched: dict[str, list[float]] = {}
    for row in rows:
        for name, value in statistics(row).items():
            watched.setdefault(name, []).append(rounded(value))
    never = set(OVERRIDING) - {"decisive", scalar}
    return {name: tuple(values) for name, values in watched.items() if name not in never}
