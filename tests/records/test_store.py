"""The store of records: interrupted runs, full disks, damaged files and other runs."""

import errno
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tracer_double import assert_same, job, started

import lastword
from lastword.decide import pace
from lastword.decide.pace import Pace
from lastword.decide.recording import plan_groups
from lastword.errors import RecordError, RunLockedError
from lastword.files import writing
from lastword.lab.evaluation import runner
from lastword.records.frame import load_records
from lastword.records.info import find_cells, folder_name, plan_of, read_run, read_runs
from lastword.records.merge import merge
from lastword.records.parts import missing_places, read_part, serialise
from lastword.records.run import Run, Shard
from lastword.records.stored import read_cells


def run(folder: Path, count: int = 20, shard: Shard | None = None, **options: Any) -> Path:
    double, work = job(folder, count, **options)
    cell = runner.execute(double, work, folder, shard).cell
    assert isinstance(cell, Path)
    return cell


def comparable(path: Path) -> pd.DataFrame:
    return lastword.load_records(path).drop(columns=["run", "seconds"])


def parts(cell: Path) -> list[Path]:
    return sorted(cell.glob("part-*.parquet"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cell of an uninterrupted run of 20 items in 7 groups."""
    return run(tmp_path_factory.mktemp("whole"))


def test_a_cell_has_a_run_file_and_one_part_per_group(whole):
    assert whole.parts[-2:] == ("double--words", "jsonl-made")
    assert [p.name for p in parts(whole)] == [f"part-0000{g}.parquet" for g in range(7)]
    info = json.loads((whole / "run.json").read_text())
    assert info["schema"] == 1 and info["model"] == "double/words"
    assert info["benchmark"] == "jsonl:made" and info["template"]["name"] == "jsonl/prompt"
    assert info["theta"]["tau_dim"] == 1.0015 and info["check"]["packed"] is None
    assert len(info["dataset"]["fingerprint"]) == 64
    assert set(info["packages"]) == {"lastword", "torch", "transformers", "tokenizers"}
    places = [int(p) for line in info["plan"] for p in line.split()]
    assert sorted(places) == list(range(20)) and places != list(range(20))
    assert not list(whole.glob(".*.tmp"))
    column = pq.ParquetFile(parts(whole)[0]).metadata.row_group(0).column(0)
    assert column.compression == "ZSTD"


def test_records_are_in_the_benchmarks_order_and_contain_arrays(whole):
    records = lastword.load_records(whole)
    assert list(records["id"]) == [f"q{i}" for i in range(20)]
    assert set(records["model"]) == {"double/words"} and set(records["benchmark"]) == {"jsonl:made"}
    row = records.iloc[3]
    n = len(row["candidates"])
    assert row["trajectory"].shape == (n, 9) and row["trajectory"].dtype == np.float64
    for name in ("t_scores", "blind_scores", "scores", "probabilities", "base_scores"):
        assert row[name].shape == (n,)
    np.testing.assert_array_equal(row["trajectory"][:, 8], row["base_scores"])
    assert isinstance(row["candidates"], list) and row["truthful"].sum() == 1
    assert all(set(g) == {"value", "threshold", "holds"} for g in row["gates"].values())
    assert set(records["operator"]) >= {"decisive", "mix"}
    assert (records["seconds"] > 0).all()


def test_cells_load_together_unless_two_are_the_same(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "a" / "b")
    other = run(tmp_path / "other", 8, model="second")
    records = lastword.load_records(tmp_path)
    assert records.groupby("model").size().to_dict() == {"double/words": 20, "second": 8}
    shutil.copytree(other, tmp_path / "copy")
    with pytest.raises(RecordError, match="are both second on jsonl:made; load one of them"):
        read_runs(tmp_path)
    shutil.copytree(other, tmp_path / "again")
    with pytest.raises(RecordError, match="are both second on jsonl:made; load one of them"):
        lastword.load_records(tmp_path)


def test_runs_of_one_cell_are_distinguished_by_folder(tmp_path):
    plain = run(tmp_path / "plain", 8, model="second")
    run(tmp_path / "chat", 5, model="second")
    records = lastword.load_records(tmp_path)
    assert records.groupby("run").size().to_dict() == {"chat": 5, "plain": 8}
    assert set(lastword.load_records(plain)["run"]) == {""}
    with pytest.raises(RecordError, match="are both second on jsonl:made; load one of them"):
        read_cells(tmp_path)


def test_records_of_older_and_newer_versions_are_read(tmp_path, whole):
    cell = tmp_path / "cell"
    shutil.copytree(whole, cell)

    def rewrite(path, name, value, kind):
        table = pq.read_table(path)
        column = pa.array([value] * len(table), kind)
        place = table.column_names.index(name)
        pq.write_table(table.set_column(place, name, column), path)

    first, second, third = parts(cell)[:3]
    missing = ["mc3", "boundary_moved", "blind_trajectory", "blind_t_scores"]
    pq.write_table(pq.read_table(first).drop_columns(missing), first)
    later = pq.read_table(second)
    pq.write_table(later.append_column("later", pa.nulls(later.num_rows)), second)
    records, before = lastword.load_records(cell), lastword.load_records(whole)
    assert list(records.columns) == list(before.columns)
    old = records["group"] == 0
    assert records.loc[old, missing].isna().all(axis=None)
    pd.testing.assert_series_equal(records.loc[~old, "mc3"], before.loc[~old, "mc3"])
    rewrite(third, "mc1", "x", pa.string())
    with pytest.raises(RecordError, match="column mc1 is string, expected double"):
        lastword.load_records(cell)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"schema": 99}'])
def test_folders_without_a_valid_run_file_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match="no records in|cannot read|schema"):
        lastword.load_records(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "text", "rows"])
def test_a_damaged_part_is_set_aside_and_computed_again(tmp_path, whole, damage):
    cell = run(tmp_path)
    victim, other = parts(cell)[2], parts(cell)[3]
    content = victim.read_bytes()
    middle = len(content) // 3
    victim.write_bytes(
        {
            "cut": content[:middle],
            "empty": b"",
            "flip": content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :],
            "text": b"not parquet at all",
            "rows": other.read_bytes(),
        }[damage]
    )
    if damage in ("cut", "empty", "text"):
        with pytest.raises(RecordError, match=r"part-00002.*cannot be read.*repeat it"):
            lastword.load_records(cell)
    double, work = job(tmp_path)
    outcome = runner.execute(double, work, tmp_path)
    assert [p.name for p in outcome.set_aside] == ["part-00002.parquet.torn-1"]
    assert len(double.groups) == 1 and outcome.resumed == 17
    assert_same(cell, whole)


def test_every_damage_of_a_part_is_a_record_error(tmp_path, whole):
    content, draw, refused = parts(whole)[2].read_bytes(), random.Random(3), 0
    for _ in range(400):
        torn = bytearray(content)
        for _ in range(draw.randrange(1, 4)):
            torn[draw.randrange(len(torn) // 2, len(torn))] = draw.randrange(256)
        (tmp_path / "part.parquet").write_bytes(torn)
        try:
            read_part(tmp_path / "part.parquet")
        except RecordError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 300


def test_temporary_files_are_deleted_and_not_read(tmp_path, whole):
    cell = run(tmp_path)
    parts(cell)[4].rename(cell / ".part-00004.parquet.tmp")
    run(tmp_path)
    assert not list(cell.glob(".part*"))
    assert_same(cell, whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"invariant": 3.0}, "invariant was 2.0 and is 3.0"),
        ({"dtype": "bfloat16"}, 'dtype was "float64" and is "bfloat16"'),
        ({"theta": {"tau_dim": 1.01}}, "theta.tau_dim was 1.0015 and is 1.01"),
        ({"revision": "abc"}, 'revision was null and is "abc"'),
        ({"count": 19}, "dataset.fingerprint was .* items was 20 and is 19"),
    ],
)
def test_another_run_in_the_same_folder_is_refused(tmp_path, changed, message):
    cell = run(tmp_path)
    before = {p: p.read_bytes() for p in cell.iterdir() if p.is_file()}
    with pytest.raises(RecordError, match=f"has another run: .*{message}.*--out"):
        run(tmp_path, **changed)
    assert {p: p.read_bytes() for p in cell.iterdir() if p.is_file()} == before


def test_device_check_and_rounding_do_not_make_another_run(tmp_path):
    run(tmp_path)
    run(tmp_path, device="cuda:3", check={"road": "plain"}, invariant=2.0 + 1e-13)


def test_a_resumed_run_uses_the_first_plan(tmp_path, whole):
    double, work = job(tmp_path)
    with Run(work.cell(tmp_path), work.info) as first:
        window = runner.encode(double, work, range(20))
        first.extend(plan_groups(double, window))
        group = {place: window[place] for place in first.plan[0]}
        first.keep(0, runner.part(double, work, 0, group, Pace()).content)
    larger, again = job(tmp_path, size=11)
    runner.execute(larger, again, tmp_path)
    assert max(len(g) for g in larger.groups) == 3
    assert_same(work.cell(tmp_path), whole)


class StoppedError(Exception):
    """A simulated interruption."""


def interrupted(folder: Path, after: int, shard: Shard | None = None) -> Any:
    """Start a run and stop it after so many parts."""
    double, work = job(folder)
    parts_done: list[int] = []

    def advance(items: int) -> None:
        parts_done.append(items)
        if len(parts_done) > after:  # the first call reports an earlier start
            raise StoppedError

    with pytest.raises(StoppedError):
        runner.execute(double, work, folder, shard, advance=advance)
    return double


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every item take longer than the limit of a part."""
    monkeypatch.setattr(pace, "FIRST_TOKENS", 1)
    monkeypatch.setattr(pace, "PART_SECONDS", 0.0)


@pytest.mark.usefixtures("slow")
def test_a_slow_group_is_saved_item_by_item(tmp_path, whole):
    double = interrupted(tmp_path, after=4)
    assert list(map(len, double.groups)) == [1] * 4
    (cell,) = find_cells(tmp_path)
    assert [p.name for p in parts(cell)] == ["part-00000.parquet", "part-00001.parquet"]
    assert len(comparable(cell)) == 4 and len(missing_places(cell)) == 16
    double, work = job(tmp_path)
    outcome = runner.execute(double, work, tmp_path)
    assert (outcome.resumed, outcome.items, sum(map(len, double.groups))) == (4, 20, 16)
    assert [p.name for p in parts(cell)] == [p.name for p in parts(whole)]
    assert_same(cell, whole)


@pytest.mark.usefixtures("slow")
def test_merge_joins_the_pieces_of_one_group(tmp_path, whole):
    plan = plan_of(read_run(whole))
    for name, places in (("a", plan[0][:2]), ("b", plan[0][1:])):
        double, work = job(tmp_path / name)
        with Run(work.cell(tmp_path / name), work.info) as some:
            some.extend(plan)
            batch = runner.encode(double, work, places)
            some.keep(0, serialise(runner.compute(double, work, 0, batch)))
            assert some.gaps[0] == [p for p in plan[0] if p not in places]
    (merged,) = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert merged.missing == 17
    assert sorted(load_records(merged.folder)["place"]) == sorted(plan[0])


@pytest.mark.usefixtures("slow")
def test_pieces_in_a_cell_and_its_shards_are_read_once(tmp_path):
    double = interrupted(tmp_path, after=2)
    interrupted(tmp_path, after=3, shard=Shard(0, 1))
    (cell,) = find_cells(tmp_path)
    records = load_records(cell)
    assert records["id"].is_unique and len(records) == 3
    assert {i for g in double.groups for i in g} < set(records["id"])


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan six items at a time."""
    monkeypatch.setattr(runner, "WINDOW", 6)


@pytest.mark.usefixtures("windows")
def test_the_plan_grows_with_the_run(tmp_path, whole):
    interrupted(tmp_path, after=3)
    (cell,) = find_cells(tmp_path)
    plan = plan_of(read_run(cell))
    assert sorted(p for g in plan for p in g) == list(range(12)) and len(plan) == 4
    double, work = job(tmp_path)
    outcome = runner.execute(double, work, tmp_path)
    assert (outcome.resumed, outcome.items, sum(map(len, double.groups))) == (9, 20, 11)
    grown = plan_of(read_run(cell))
    assert grown[:4] == plan and len(grown) == 7 and sorted(grown[6]) == [18, 19]
    mine, theirs = comparable(cell), comparable(whole)
    assert mine.drop(columns="group").to_json() == theirs.drop(columns="group").to_json()


@pytest.mark.usefixtures("windows")
def test_shards_share_a_growing_plan(tmp_path):
    interrupted(tmp_path, after=1, shard=Shard(0, 2))  # within the plan's first window
    (cell,) = find_cells(tmp_path)
    for shard in (Shard(1, 2), Shard(0, 2)):
        run(tmp_path, shard=shard)
    assert missing_places(cell) == [] and len(comparable(cell)) == 20
    run(tmp_path / "whole")
    assert_same(cell, tmp_path / "whole")


@pytest.mark.usefixtures("windows")
def test_merge_uses_the_longest_plan(tmp_path):
    interrupted(tmp_path / "a", after=1, shard=Shard(0, 2))
    run(tmp_path / "b", shard=Shard(1, 2))
    (merged,) = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    assert merged.missing == 20 - 3 - len(comparable(tmp_path / "b"))
    run(tmp_path / "a", shard=Shard(0, 2))
    (again,) = merge([tmp_path / "a"], tmp_path / "all")
    assert again.missing == 0
    run(tmp_path / "whole")
    assert_same(tmp_path / "all", tmp_path / "whole")


def test_a_second_writer_is_refused_but_other_shards_are_not(tmp_path):
    double, work = job(tmp_path)
    cell = work.cell(tmp_path)
    with Run(cell, work.info), Run(cell, work.info, Shard(0, 2)), Run(cell, work.info, Shard(1, 2)):
        for shard in (None, Shard(0, 2)):
            with pytest.raises(RunLockedError, match="another process writes"):
                runner.execute(double, work, tmp_path, shard)
    assert double.groups == []
    runner.execute(double, work, tmp_path)


def test_the_lock_holds_between_processes_and_ends_with_its_process(forks, tmp_path):
    with started(forks, tmp_path, items=40, pause=0.2) as child:
        assert child.stdout.readline() == "group\n"  # it has the lock
        double, work = job(tmp_path, 40)
        with pytest.raises(RunLockedError):
            runner.execute(double, work, tmp_path)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert runner.execute(double, work, tmp_path).items == 40


def test_shards_split_the_plan_and_merge_to_the_whole(tmp_path, whole):
    cells = {run(tmp_path, shard=Shard(i, 3)) for i in range(3)}
    (cell,) = cells
    assert sorted(p.name for p in cell.iterdir() if p.is_dir()) == [
        f"shard-{i}-of-3" for i in range(3)
    ]
    assert not parts(cell)
    assert_same(cell, whole)  # read before they are merged
    (merged,) = merge([tmp_path])
    assert (merged.folder, merged.items, merged.missing) == (cell, 20, 0)
    assert len(parts(cell)) == 7
    assert_same(cell, whole)  # no duplicates, though the shards are still there
    for shard in cell.glob("shard-*"):
        shutil.rmtree(shard)
    assert_same(cell, whole)


def test_merging_folders_reports_missing_items(tmp_path, whole):
    for place, index in (("a", 0), ("b", 2)):
        run(tmp_path / place, shard=Shard(index, 3))
    sources = [tmp_path / "a", tmp_path / "b"]
    (merged,) = merge(sources, tmp_path / "all")
    lost = [place for group in (1, 4) for place in plan_of(read_run(whole))[group]]
    assert missing_places(merged.folder) == sorted(lost) and merged.missing == len(lost)
    run(tmp_path / "c", shard=Shard(1, 3))
    (again,) = merge([*sources, tmp_path / "c"], tmp_path / "all")
    assert again.missing == 0 and missing_places(again.folder) == []
    assert_same(tmp_path / "all", whole)


def test_merge_omits_a_damaged_part(tmp_path):
    cell = run(tmp_path / "a")
    parts(cell)[5].write_bytes(b"torn")
    (merged,) = merge([tmp_path / "a"], tmp_path / "all")
    assert merged.missing == 3


def test_merge_refuses_different_runs_and_writes_nothing(tmp_path):
    run(tmp_path / "a", shard=Shard(0, 2))
    run(tmp_path / "b", shard=Shard(1, 2), dtype="bfloat16")
    with pytest.raises(RecordError, match="have different runs: dtype was"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    run(tmp_path / "c", shard=Shard(1, 2), size=4)
    with pytest.raises(RecordError, match="have different runs: plan was"):
        merge([tmp_path / "a", tmp_path / "c"], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    with pytest.raises(RecordError, match="no records"):
        merge([tmp_path / "all"])


def test_merge_refuses_a_cell_that_is_being_written(tmp_path):
    cell = run(tmp_path, shard=Shard(0, 2))
    _, work = job(tmp_path)
    with Run(cell, work.info, Shard(0, 2)), pytest.raises(RunLockedError, match="shard-0-of-2"):
        merge([tmp_path])


def test_merge_reads_from_a_read_only_folder(tmp_path, whole, monkeypatch):
    cell = run(tmp_path / "archive")
    (cell / ".lock").unlink()
    real = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != cell and real(p, mode))
    merge([tmp_path / "archive"], tmp_path / "all")
    assert not (cell / ".lock").exists()
    assert_same(tmp_path / "all", whole)


@pytest.mark.parametrize("text", ["2/2", "-1/2", "1", "1/0", "a/b", "1/2/3", ""])
def test_a_shard_is_i_of_n(text):
    with pytest.raises(RecordError, match="i from 0 to n-1"):
        Shard.parse(text)


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen--Qwen3-0.6B"),
        ("jsonl:mine", "jsonl-mine"),
        ("truthfulqa@own6", "truthfulqa@own6"),
        ("../up", "..--up"),
        ("..", "-.."),
        ("a b\n", "a-b-"),
    ],
)
def test_folder_names_are_safe(name, folder):
    assert folder_name(name) == folder


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_is_an_error_and_leaves_complete_records(tmp_path, whole, monkeypatch, step):
    double, work = job(tmp_path)
    real: Any = {"fsync": os.fsync, "replace": os.replace, "write": open}[step]
    calls: list[Any] = []

    def full(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return (no_space if len(calls) > 6 else real)(*args, **options)

    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(writing, "open", full, raising=False)
        else:
            patch.setattr(os, step, full)
        with pytest.raises(RecordError, match="No space left on device.*start again") as caught:
            runner.execute(double, work, tmp_path)
    assert "\n" not in str(caught.value)
    cell = work.cell(tmp_path)
    done = len(comparable(cell)) if parts(cell) else 0
    assert 0 < done < 20
    assert not list(cell.glob(".*.tmp"))
    runner.execute(double, work, tmp_path)
    assert_same(cell, whole)


def test_a_damaged_part_is_set_aside_on_a_full_disk(tmp_path, monkeypatch):
    victim = parts(run(tmp_path))[2]
    victim.write_bytes(torn := victim.read_bytes()[:-9])
    monkeypatch.setattr(writing, "open", no_space, raising=False)
    with pytest.raises(RecordError, match="cannot write .*part-00002.*No space left on device"):
        runner.execute(*job(tmp_path), tmp_path)
    assert victim.with_name("part-00002.parquet.torn-1").read_bytes() == torn
    assert not victim.exists()


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    double, work = job(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot write .*file"):
        runner.execute(double, work, tmp_path / "file")


@pytest.mark.slow
def test_records_are_complete_after_ten_kills(forks, tmp_path):
    rng, items = random.Random(7), 330
    progress = []
    for _ in range(10):
        with started(forks, tmp_path / "killed", items, pause=0.002) as child:
            for _ in range(rng.randrange(7)):
                child.stdout.readline()  # one per group
            time.sleep(rng.uniform(0, 0.01))
            child.kill()
            assert child.wait() == -signal.SIGKILL
        progress.append(len(list((tmp_path / "killed").rglob("part-*.parquet"))))
    assert progress == sorted(progress) and len(set(progress)) > 4
    assert 0 < progress[-1] < items // 3
    with started(forks, tmp_path / "killed", items, pause=0) as last:
        assert last.stdout.read() and last.wait() == 0
    run(tmp_path / "whole", items)
    assert_same(tmp_path / "killed", tmp_path / "whole")
