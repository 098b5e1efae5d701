"""Models with a short name: located in the cache, downloaded by pip."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import InputError, ModelError
from lastword.model import named
from lastword.model.named import PUBLISHED, Published

METADATA = "Metadata-Version: 2.1\nName: {}\nVersion: 0.1.2\nRequires-Dist: llm\n"
TAG = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
CONTENT = b"GGUF" + bytes(range(256)) * 40
INDEX = {"PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": ""}
INDEX |= {"PIP_CONFIG_FILE": "/dev/null"}


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is pip's only index, and set a cache for the test."""
    for name, value in INDEX.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


@pytest.fixture
def publish(shelf: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts a model's parts on the shelf, and expects their content."""

    def put(name: str, file: str, *parts: bytes, expected: bytes | None = None) -> Published:
        wheels = []
        for i, part in enumerate(parts):
            module, info = f"part_{i}", f"part_{i}-0.1.2.dist-info"
            with zipfile.ZipFile(shelf / f"{module}-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"{module}/data/{file}", part)
                wheel.writestr(f"{info}/METADATA", METADATA.format(f"part-{i}"))
                wheel.writestr(f"{info}/WHEEL", TAG)
                wheel.writestr(f"{info}/RECORD", "")
            wheels.append((f"part-{i}==0.1.2", f"{module}/data/{file}"))
        whole = b"".join(parts) if expected is None else expected
        digest, terms = hashlib.sha256(whole).hexdigest(), PUBLISHED[name].terms
        model = Published(name, file, len(whole), digest, tuple(wheels), terms)
        monkeypatch.setitem(named.PUBLISHED, name, model)
        return model

    return put


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_pip_downloads_and_one_file_is_stored(publish, tmp_path):
    model = publish("smollm2-135m", "small.gguf", CONTENT)
    with pytest.raises(InputError, match="it has lastword/smollm2-135m, lastword/gemma3-270m, "):
        named.fetch("lastword/smollm3")
    assert named.published("org/smollm2-135m") is None
    with pytest.raises(ModelError, match="`lastword get smollm2-135m` fetches it once"):
        named.locate("lastword/smollm2-135m")
    model.path.parent.mkdir(parents=True)
    model.path.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match="is not here"):  # a file of another size
        named.locate("smollm2-135m")
    path = named.fetch("smollm2-135m")
    assert path.read_bytes() == CONTENT and files_in(tmp_path / "cache") == [path]
    assert named.locate("lastword/smollm2-135m") == path == model.path
    assert named.fetch("lastword/smollm2-135m") == path


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("other", "the downloaded file is not the expected one"),
        ("absent", "No matching distribution"),
        ("cache", "could not be written"),
    ],
)
def test_a_failed_download_stores_nothing_and_is_one_line(publish, shelf, tmp_path, damage, words):
    expected = CONTENT[::-1] if damage == "other" else CONTENT
    model = publish("smollm2-135m", "small.gguf", CONTENT, expected=expected)
    if damage == "absent":
        next(shelf.glob("*.whl")).unlink()
    if damage == "cache":
        (tmp_path / "cache").write_text("no folder")
    with pytest.raises(ModelError, match=words) as caught:
        named.fetch(model.name)
    assert "\n" not in str(caught.value) and not model.path.exists()
    assert damage == "cache" or "lastword get smollm2-135m" in str(caught.value)


def test_parts_make_one_file_once_the_terms_are_accepted(publish, tmp_path, monkeypatch):
    quarters = [CONTENT[at : at + 2561] for at in range(0, len(CONTENT), 2561)]
    model = publish("gemma3-270m", "whole.gguf", *quarters)
    runner = CliRunner()
    shown = runner.invoke(app, ["get", "gemma3-270m"])
    assert shown.exit_code == 1 and not model.path.exists()
    assert isinstance(shown.exception, ModelError) and "\n" not in str(shown.exception)
    assert "Gemma Terms of Use" in str(shown.exception)
    assert "`lastword get gemma3-270m --accept-terms`" in str(shown.exception)
    done = runner.invoke(app, ["get", "gemma3-270m", "--accept-terms"])
    assert done.exit_code == 0 and "Gemma Terms of Use" in done.stderr
    assert done.stdout.strip() == str(model.path) and model.path.read_bytes() == CONTENT
    assert files_in(tmp_path / "cache") == [model.path]
    monkeypatch.setattr(subprocess, "run", None)
    again = runner.invoke(app, ["get", "gemma3-270m"])  # already downloaded
    assert again.exit_code == 0 and not again.stderr


@pytest.mark.parametrize("within", ["", "small/"])
def test_a_zip_in_parts_becomes_a_folder(publish, tmp_path, within):
    """Some zips contain the folder, others its files."""
    with zipfile.ZipFile(archive := tmp_path / "small.zip", "w") as whole:
        whole.writestr(f"{within}config.json", "{}")
        whole.writestr(f"{within}1_Pooling/config.json", "{}")
    content = archive.read_bytes()
    model = publish("mpnet", "small.zip", content[:100], content[100:])
    assert named.fetch("mpnet") == named.locate("mpnet") == model.path
    files = [path.relative_to(model.path).as_posix() for path in files_in(model.path)]
    assert sorted(files) == ["1_Pooling/config.json", "config.json"]
    assert [*model.path.parent.iterdir()] == [model.path]
