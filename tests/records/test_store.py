"""The store of records: interrupted runs, full disks, damaged files and other runs."""

import errno
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
from lastword.errors import RecordError, RunLockedError
from lastword.files import writing
from lastword.lab.evaluation.runner import evaluate, run_info
from lastword.records import store
from lastword.records.cells import read_cells
from lastword.records.columns import to_table
from lastword.records.info import cell_folder, find_cells, folder_name, read_runs
from lastword.records.store import Run, Shard, merge, missing_places, part_files, read_part


@pytest.fixture(autouse=True)
def _parts_of_a_group(monkeypatch):
    monkeypatch.setattr(store, "PART_SECONDS", 0.0)


def run(folder: Path, count: int = 20, shard: Shard | None = None, **options: Any) -> Path:
    return evaluate(*job(folder, count, **options), folder, shard or Shard()).cell


def opened(folder: Path, shard: Shard | None = None) -> Run:
    """The run of `job` in a folder, to be locked."""
    double, work = job(folder)
    info = run_info(double, work, work.dataset.items(work.template))
    return Run(cell_folder(folder, info["model"], work.name), info, shard or Shard())


def comparable(path: Path) -> pd.DataFrame:
    return lastword.load_records(path).drop(columns=["run", "seconds"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cell of an uninterrupted run of 20 items in 7 groups."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "PART_SECONDS", 0.0)
        return run(tmp_path_factory.mktemp("whole"))


def test_records_are_in_the_benchmarks_order_and_contain_arrays(whole):
    records = lastword.load_records(whole)
    assert list(records["id"]) == [f"q{i}" for i in range(20)]
    row = records.iloc[3]
    assert row["trajectory"].shape == (len(row["candidates"]), 9)
    np.testing.assert_array_equal(row["trajectory"][:, 8], row["base_scores"])
    assert all(set(g) == {"value", "threshold", "holds"} for g in row["gates"].values())
    assert (records["seconds"] > 0).all()


def test_cells_load_together_and_runs_of_one_cell_are_distinguished_by_folder(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "a" / "b")
    other = run(tmp_path / "other", 8, model="second")
    records = lastword.load_records(tmp_path)
    assert records.groupby("model").size().to_dict() == {"double/words": 20, "second": 8}
    assert set(lastword.load_records(other)["run"]) == {""}
    run(tmp_path / "chat", 5, model="second")
    records = lastword.load_records(tmp_path)
    assert records.groupby("run").size().to_dict() == {"": 20, "chat": 5, "other": 8}
    for read in (read_runs, read_cells):
        with pytest.raises(RecordError, match="are both second on jsonl:made; load one of them"):
            read(tmp_path)
    shutil.copytree(other, tmp_path / "other" / "double--words" / "copy")
    with pytest.raises(RecordError, match="are both second on jsonl:made; load one of them"):
        lastword.load_records(tmp_path)


def test_parts_with_other_columns_are_refused(tmp_path, whole):
    shutil.copytree(whole, tmp_path / "cell")
    first = part_files(tmp_path / "cell")[0]
    table = pq.read_table(first)
    column = table.column_names.index("mc1")
    texts = table.set_column(column, "mc1", pa.array(["x"] * len(table)))
    for other in (table.drop_columns(["mc3"]), texts):
        pq.write_table(other, first)
        with pytest.raises(RecordError, match="has other columns than this version"):
            lastword.load_records(tmp_path / "cell")


@pytest.mark.parametrize("text", [None, "{", "[]", '{"schema": 99}'])
def test_folders_without_a_valid_run_file_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match="no records in|cannot read|schema"):
        lastword.load_records(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "text", "rows"])
def test_a_damaged_part_is_set_aside_and_computed_again(tmp_path, whole, damage):
    cell = run(tmp_path)
    victim, other = part_files(cell)[2:4]
    content = victim.read_bytes()
    middle = len(content) // 3
    footer = int.from_bytes(content[-8:-4], "little") + 8
    last = len(content) - footer - 1  # the end of the last page; a header has no checksum
    victim.write_bytes(
        {
            "cut": content[:middle],
            "empty": b"",
            "flip": content[:last] + bytes([content[last] ^ 0xFF]) + content[last + 1 :],
            "text": b"not parquet at all",
            "rows": other.read_bytes(),
        }[damage]
    )
    if damage in ("cut", "empty", "text"):
        with pytest.raises(RecordError, match=f"{victim.name}.*cannot be read.*repeat it"):
            lastword.load_records(cell)
    double, work = job(tmp_path)
    outcome = evaluate(double, work, tmp_path)
    renamed = [] if damage == "rows" else [f"{victim.name}.torn"]
    assert [p.name for p in outcome.set_aside] == renamed
    assert len(double.groups) == 1 and outcome.resumed == 17
    assert_same(cell, whole)


def test_every_damage_of_a_part_is_a_record_error(tmp_path, whole):
    content, draw, refused = part_files(whole)[2].read_bytes(), random.Random(3), 0
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
    run(tmp_path, device="cuda:3", check={"road": "plain"}, invariant=2.0 + 1e-13)  # the same run


class StoppedError(Exception):
    """A simulated interruption."""


def test_a_restart_computes_what_is_missing_in_other_groups(tmp_path, whole):
    def stop(items: int, counts: list[int] = []) -> None:  # noqa: B006 - counts over the calls
        counts.append(items)
        if len(counts) == 4:  # the first call reports an earlier start
            raise StoppedError

    with pytest.raises(StoppedError):
        evaluate(*job(tmp_path), tmp_path, advance=stop)
    (cell,) = find_cells(tmp_path)
    done = len(comparable(cell))
    assert 6 <= done <= 9 and len(missing_places(cell)) == 20 - done
    shutil.copy(part_files(cell)[0], cell / f".{part_files(cell)[0].name}.0123abcd.tmp")
    double, work = job(tmp_path, size=11)
    outcome = evaluate(double, work, tmp_path)
    assert (outcome.resumed, outcome.items) == (done, 20)
    assert list(map(len, double.groups)) == [11, 9 - done]
    assert not list(cell.glob(".part*"))  # that of a killed process
    assert_same(cell, whole)


def test_the_lock_holds_between_processes_and_ends_with_its_process(forks, tmp_path):
    with started(forks, tmp_path, items=40, pause=0.2) as child:
        assert child.stdout.readline() == "group\n"  # it has the lock
        with pytest.raises(RunLockedError):
            run(tmp_path, 40)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    assert len(comparable(run(tmp_path, 40))) == 40


def test_shards_share_a_folder_or_are_merged(tmp_path, whole):
    with opened(tmp_path / "all"), opened(tmp_path / "all", Shard(0, 3)):
        for shard in (Shard(), Shard(0, 3)):
            with pytest.raises(RunLockedError, match="another process writes"):
                run(tmp_path / "all", shard=shard)
        run(tmp_path / "all", shard=Shard(1, 3))
        run(tmp_path / "second", shard=Shard(2, 3))
    (merged,) = merge([tmp_path / "second"], tmp_path / "all")
    assert missing_places(merged.cell) == merged.missing == [*range(0, 20, 3)]
    part_files(run(tmp_path / "third", shard=Shard(0, 3)))[0].write_bytes(b"torn")
    (again,) = merge([tmp_path / "third"], tmp_path / "all")
    assert len(again.missing) == 3
    run(tmp_path / "third", shard=Shard(0, 3))
    assert [one.missing for one in merge([tmp_path / "third"], tmp_path / "all")] == [[]]
    assert_same(tmp_path / "all", whole)
    double, work = job(tmp_path)
    assert evaluate(double, work, tmp_path / "all").resumed == 20 and double.groups == []
    run(tmp_path / "other", shard=Shard(0, 2), dtype="bfloat16")
    with pytest.raises(RecordError, match="have different runs: dtype was"):
        merge([tmp_path / "third", tmp_path / "other"], tmp_path / "mixed")
    assert not (tmp_path / "mixed").exists()


def test_merge_keeps_different_parts_of_one_name(tmp_path, whole):
    rows = [row for path in part_files(whole) for row in read_part(path).to_pylist()]
    for name, step in (("a", 2), ("b", 3)):
        with opened(tmp_path / name) as some:
            some.keep(to_table(sorted(rows, key=lambda row: row["place"])[::step]))
    (merged,) = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "all")
    expected = {*range(0, 20, 2), *range(0, 20, 3)}
    assert sorted(comparable(merged.cell)["place"]) == sorted(expected)


def test_shards_and_folder_names_are_checked():
    for text in ("2/2", "-1/2", "1", "1/0", "a/b", "1/2/3", ""):
        with pytest.raises(RecordError, match="i from 0 to n-1"):
            Shard.parse(text)
    names = {"Qwen/Qwen3-0.6B": "Qwen--Qwen3-0.6B", "../up": "..--up", "..": "-..", "a b\n": "a-b-"}
    assert {name: folder_name(name) for name in names} == names


def no_space(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_a_full_disk_is_an_error_and_leaves_complete_records(tmp_path, whole, monkeypatch, step):
    real: Any = {"fsync": os.fsync, "replace": os.replace, "write": open}[step]
    calls: list[Any] = []

    def full(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return (no_space if len(calls) > 6 else real)(*args, **options)

    job(tmp_path)
    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(writing, "open", full, raising=False)
        else:
            patch.setattr(os, step, full)
        with pytest.raises(RecordError, match="No space left on device.*start again") as caught:
            run(tmp_path)
    assert "\n" not in str(caught.value)
    (cell,) = find_cells(tmp_path)
    assert 0 < len(comparable(cell)) < 20
    assert not list(cell.glob(".*.tmp"))
    assert_same(run(tmp_path), whole)


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
