"""Records on object storage: as whole, as safe from a kill, and as good to read as on a disk."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from object_storage import storage
from synthetic import synthetic_cell, write_cells
from tracer_double import assert_same, job, started

import lastword
from lastword.errors import RecordError, RunLockedError
from lastword.files import locking
from lastword.files.folder import Folder, locate
from lastword.lab.evaluation import runner
from lastword.lab.evaluation.work import Extent
from lastword.records.merge import merge
from lastword.records.run import Run, Shard

NUMBERS = count()


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with storage() as url:
        yield url


@pytest.fixture
def url(bucket: str) -> str:
    """A folder that nothing is in yet."""
    return f"{bucket}/deep/runs-{next(NUMBERS)}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks that are renewed, and given up, sooner."""
    monkeypatch.setattr(locking, "BEAT", 0.2)
    monkeypatch.setattr(locking, "LIFE", 1.5)
    monkeypatch.setattr(locking, "LOOK", 0.05)


def run(folder: Path, out: Folder, shard: Shard | None = None) -> Folder:
    return runner.execute(*job(folder), out, Extent(shard)).cell


def names(folder: Folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_leaves_there_what_it_leaves_on_a_disk(tmp_path, url):
    cell, local = run(tmp_path, locate(url)), run(tmp_path, tmp_path / "local")
    assert str(cell) == f"{url}/double--words/jsonl-made"
    assert names(cell) == [n for n in names(local) if not n.startswith(".")]  # no lock is left
    assert_same(url, tmp_path / "local")
    again, work = job(tmp_path)
    assert runner.execute(again, work, locate(url)).resumed == 20 and again.groups == []


def test_a_torn_part_is_set_aside_and_done_again(tmp_path, url):
    cell = run(tmp_path, locate(url))
    victim = cell / "part-00002.parquet"
    victim.write_bytes(victim.read_bytes()[:-9])
    with pytest.raises(RecordError, match=f"{victim} cannot be read .* to repeat it"):
        lastword.load_records(url)
    outcome = runner.execute(*job(tmp_path), locate(url))
    assert [str(p) for p in outcome.set_aside] == [f"{victim}.torn-1"] and outcome.resumed == 17
    assert_same(url, run(tmp_path, tmp_path / "local"))


def test_shards_are_joined_there_and_from_there(tmp_path, url):
    for i in range(2):
        run(tmp_path, locate(url), Shard(i, 2))
    local = run(tmp_path, tmp_path / "local")
    assert_same(url, local)  # before they are joined
    (merged,) = merge([locate(url)])
    assert merged.missing == 0 and "part-00006.parquet" in names(merged.folder)
    merge([locate(url)], tmp_path / "here")
    merge([local], locate(f"{url}-back"))
    for joined in (url, tmp_path / "here", f"{url}-back"):
        assert_same(joined, local)


@pytest.mark.usefixtures("hasty")
def test_two_writers_refuse_each_other(tmp_path, url, monkeypatch):
    monkeypatch.setattr(locking, "LIFE", 60.0)  # a busy machine renews late; taken it would be then
    double, work = job(tmp_path)
    with Run(work.cell(locate(url)), work.info):
        with pytest.raises(RunLockedError, match=f"another process writes to {url}"):
            runner.execute(double, work, locate(url))
    assert double.groups == []
    assert runner.execute(double, work, locate(url)).items == 20


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
def test_the_lock_of_a_killed_writer_is_taken_over(forks, tmp_path, url):
    with started(forks, url, 20, pause=0.05) as child:
        assert child.stdout.readline() == "group\n"  # it has the lock
    double, work = job(tmp_path)
    begun = time.monotonic()
    assert runner.execute(double, work, locate(url)).items == 20
    assert time.monotonic() - begun > locking.LIFE
    assert_same(url, run(tmp_path, tmp_path / "local"))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_reports_and_ablations_are_made_of_it(tmp_path, url, run):
    cell = synthetic_cell(items=40)
    write_cells(cell, locate(url))
    write_cells(cell, tmp_path / "local")
    there, here = (run("ablate", "--json", place) for place in (url, tmp_path / "local"))
    assert there == here and there[0] == 0
    code, said, _ = run("report", url, "--out", tmp_path / "report")
    assert code == 0 and str(tmp_path / "report" / "index.html") in said


@pytest.mark.parametrize(
    ("path", "environment", "said"),
    [
        ("s3://nobody/runs", {}, "there is no bucket nobody"),
        ("s3://bucket/runs", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect to"),
        ("s3://bucket/runs", {"AWS_ACCESS_KEY_ID": None}, "Unable to locate credentials"),
        ("nowhere://bucket/runs", {}, "nowhere"),
        ("gs://bucket/runs", {}, "gcsfs"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_storage_out_of_reach_is_one_line_before_a_model_is_loaded(
    run, monkeypatch, path, environment, said
):
    import s3fs

    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name, value in environment.items():
        monkeypatch.delenv(name) if value is None else monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    asked = ["eval", "--model", "lastword/demo-organism", "--benchmark", "demo", "--out", path]
    monkeypatch.setattr(
        "lastword.decide.tracer.Tracer.from_pretrained", None
    )  # nobody comes so far
    code, _, err = run(*asked)
    assert code == 1 and len(err.strip().splitlines()) == 1
    assert path in err and said in err
    s3fs.S3FileSystem.clear_instance_cache()
