"""The wheel has what the package needs, and runs outside the tree."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import lastword

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lastword"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the wheel's content alone, elsewhere."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run_elsewhere(installed: Path, folder: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package(wheel):
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.startswith("lastword/")}
        assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())
    assert packed == ours
    assert "lastword/py.typed" in packed


def test_the_wheel_runs_outside_the_tree(installed, tmp_path):
    place = run_elsewhere(installed, tmp_path, "-c", "import lastword; print(lastword.__file__)")
    assert Path(place.strip()).is_relative_to(installed)
    assert run_elsewhere(installed, tmp_path, "-m", "lastword", "--version").strip() == (
        lastword.__version__
    )


@pytest.mark.slow
def test_the_wheel_runs_the_demo_outside_the_tree(installed, tmp_path):
    out = run_elsewhere(installed, tmp_path, "-m", "lastword", "demo", "--organism")
    assert "organism" in out and "control" in out
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert "<script" in page and "default-src 'none'" in page


def test_the_embedded_models_are_small(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    sizes = [f.file_size for f in files if f.filename.startswith("lastword/model/embedded/")]
    assert 2**20 < sum(sizes) <= 12 * 2**20


def test_the_version_is_one(wheel):
    assert wheel.name.split("-")[1] == lastword.__version__
    dated = re.search(r"^## (\d+\.\d+\.\d+) \(", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert dated[1] == lastword.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lastword.__version__


def test_every_dependency_has_an_exact_pin():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {name.lower().replace("_", "-") for name in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(d for name in ("dev", "eval", "docs") for d in extras[name]),
    ]
    for requirement in wanted:
        name = requirement.split("[")[0].split(">")[0].split("<")[0].strip()
        assert name == "lastword" or name.replace("_", "-").lower() in pinned, requirement
    assert pins["torch"] == "2.13.0"


def test_every_pin_but_torch_has_its_hashes():
    def pins(file: str) -> list[str]:
        lines = (ROOT / file).read_text().splitlines()
        return [line.removesuffix(" \\") for line in lines if re.match(r"[\w.-]+==", line)]

    hashed = (ROOT / "constraints.hashes.txt").read_text().split("\n")
    known = {name.lower().replace("_", "-").replace(".", "-") for name in pins("constraints.txt")}
    locked = {
        name.lower().replace("_", "-").replace(".", "-") for name in pins("constraints.hashes.txt")
    }
    assert known - locked == {"torch==2-13-0"} and not locked - known, "run `make lock`"
    for line, after in zip(hashed, hashed[1:], strict=False):
        if "==" in line and not line.startswith("#"):
            assert re.match(r"    --hash=sha256:[0-9a-f]{64}( \\)?$", after), line
