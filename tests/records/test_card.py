"""A folder of records as a dataset: what `datasets` loads from it is what the store reads."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tracer_double import TracerDouble, dataset

import lastword
from lastword.errors import RecordError
from lastword.evaluation import runner
from lastword.evaluation.work import Extent, Work
from lastword.records import schema
from lastword.records.merge import merge
from lastword.records.parts import part_paths
from lastword.records.run import Shard


def run(folder: Path, out: Path, shard: Shard | None = None, **options: Any) -> Path:
    folder.mkdir(exist_ok=True)
    double: Any = TracerDouble(**options)
    data = dataset(folder, 20)
    work = runner.prepare(double, Work(data, data.benchmark.template()))
    cell = runner.execute(double, work, out, Extent(shard)).cell
    assert isinstance(cell, Path)
    return cell


def configs(root: Path) -> dict[str, list[str]]:
    header = yaml.safe_load((root / "README.md").read_text(encoding="utf-8").split("---")[1])
    return {c["config_name"]: c["data_files"][0]["path"] for c in header["configs"]}


def loaded(root: Path, name: str, cache: Path) -> Any:
    import datasets

    return datasets.load_dataset(str(root), name, split="train", cache_dir=str(cache))


def test_every_cell_is_a_configuration_that_datasets_loads(tmp_path):
    root = tmp_path / "runs"
    first, second = run(tmp_path, root), run(tmp_path, root, model="second")
    names = ["--".join(cell.relative_to(root).parts) for cell in (first, second)]
    assert sorted(configs(root)) == sorted(names)
    for cell, name in zip((first, second), names, strict=True):
        rows = loaded(root, name, tmp_path / "cache")
        known = lastword.load_records(cell)
        assert rows.column_names == schema.COLUMNS.names
        assert sorted(rows["id"]) == sorted(known["id"])
        scores = {row["id"]: row["scores"] for row in rows}
        assert all(scores[row["id"]] == list(row["scores"]) for _, row in known.iterrows())


def test_shards_and_what_was_merged_of_them_are_listed_once(tmp_path):
    root = tmp_path / "runs"
    for index in (0, 1):
        cell = run(tmp_path, root, Shard(index, 2))
    (name,) = configs(root)
    assert len(loaded(root, name, tmp_path / "first")) == 20
    merge([root])
    assert configs(root) == {name: [f"{cell.relative_to(root).as_posix()}/part-*.parquet"]}
    assert sorted(loaded(root, name, tmp_path / "second")["place"]) == list(range(20))
    merge([cell], tmp_path / "elsewhere")
    assert configs(tmp_path / "elsewhere") == configs(root)


def test_a_stopped_run_has_its_card_and_a_cell_without_records_none(tmp_path):
    double: Any = TracerDouble()
    data = dataset(tmp_path, 20)
    work = runner.prepare(double, Work(data, data.benchmark.template()))
    root = tmp_path / "runs"

    def stopped_after(parts: int) -> None:
        told: list[int] = []

        def advance(items: int) -> None:
            told.append(items)
            if len(told) > parts:  # the first call tells what an earlier start has left
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            runner.execute(double, work, root, advance=advance)

    stopped_after(0)
    assert configs(root) == {}
    stopped_after(1)
    assert len(configs(root)) == 1


def test_what_somebody_wrote_on_the_card_stays(tmp_path):
    root = tmp_path / "runs"
    root.mkdir()
    (root / "README.md").write_text("---\nlicense: mit\nconfigs: []\n---\nOurs, of November.\n")
    run(tmp_path, root)
    text = (root / "README.md").read_text()
    assert "license: mit" in text and text.endswith("---\nOurs, of November.\n")
    assert len(configs(root)) == 1


@pytest.mark.parametrize("header", ["[1]", "a: [1"])
def test_a_readme_that_is_no_card_is_said_before_the_work(tmp_path, header):
    root = tmp_path / "runs"
    root.mkdir()
    (root / "README.md").write_text(f"---\n{header}\n---\n")
    with pytest.raises(RecordError, match="README.md is no dataset card"):
        run(tmp_path, root)
    assert not list(root.rglob("part-*"))


def test_records_with_peers_are_read_as_they_were_written_until_now(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    cell = run(tmp_path, tmp_path / "runs")
    path = next(iter(part_paths(cell).values()))
    table = pq.read_table(path)
    pairs = [[("base-mean", [0.5, 1.0]), ("dola", None)]] * table.num_rows
    map_ = pa.array(pairs, pa.map_(pa.string(), pa.list_(pa.float64())))
    place = table.column_names.index("methods")
    pq.write_table(table.set_column(place, "methods", map_), path)
    read = lastword.load_records(cell)
    old = read[read["group"] == 0]["methods"].iloc[0]
    assert list(old) == ["base-mean", "dola"] and old["dola"] is None
    assert old["base-mean"].tolist() == [0.5, 1.0]
