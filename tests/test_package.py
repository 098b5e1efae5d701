"""The wheel has what the package needs, and runs outside the tree."""

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def elsewhere(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True
    )


def run_elsewhere(installed: Path, folder: Path, *arguments: str) -> str:
    done = elsewhere(installed, folder, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_every_file_of_the_package_but_the_mix_model(wheel):
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and not {"__pycache__", "mix"} & set(path.parts)
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


def test_the_mix_model_is_refused_with_advice_outside_the_tree(installed, tmp_path):
    (tmp_path / "items.jsonl").write_text('{"prompt": "The", "candidates": ["fox", "cat"]}\n')
    command = [
        "-m",
        "lastword",
        "correct",
        "--input",
        "items.jsonl",
        "--model",
        "lastword/demo-mix",
    ]
    done = elsewhere(installed, tmp_path, *command)
    assert done.returncode and "pip install --editable ." in done.stderr


@pytest.mark.slow
def test_the_wheel_runs_the_demo_outside_the_tree(installed, tmp_path):
    out = run_elsewhere(installed, tmp_path, "-m", "lastword", "demo")
    assert "under the certificate" in out
    page = (tmp_path / "demo.html").read_text(encoding="utf-8")
    assert "<script" in page and "default-src 'none'" in page


def metadata(**variables: str) -> dict[str, Any]:
    """What a build with these variables would say of the project."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    environment = os.environ | variables
    return json.loads(subprocess.check_output(command, cwd=ROOT, env=environment, text=True))


def test_the_index_shows_readme_with_links_that_lead_out_of_it():
    link = re.compile(r"\]\(([^)\s]+)\)")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = metadata(REPOSITORY_URL="https://forge.example/me/lastword/")
    assert shown["urls"]["Repository"] == "https://forge.example/me/lastword"
    ours, theirs = link.findall(readme), link.findall(shown["readme"]["text"])
    assert "docs/images/correction.svg" in ours
    for relative, full in zip(ours, theirs, strict=True):
        kind = "raw" if relative.endswith(".svg") else "blob"
        there = f"https://forge.example/me/lastword/{kind}/v{lastword.__version__}/{relative}"
        assert full == (relative if "://" in relative else there)
    unknown = metadata(REPOSITORY_URL="")
    assert unknown["readme"]["text"] == readme and "urls" not in unknown


def needed(name: str) -> set[str]:
    """Packages that an installation of one brings, itself among them; no extras."""
    names: set[str] = set()
    waiting: set[str] = {name}
    while waiting:
        names |= waiting
        lines = [line for n in waiting for line in distribution(n).requires or ()]
        read = [Requirement(line) for line in lines]
        asked = [r for r in read if r.marker is None or r.marker.evaluate({"extra": ""})]
        waiting = {str(canonicalize_name(r.name)) for r in asked} - names
    return names


@pytest.fixture(scope="module")
def core(installed, tmp_path_factory) -> Path:
    """A folder of what `pip install .` brings: lastword and its dependencies, no extra's."""
    folder = tmp_path_factory.mktemp("core")
    for name in needed("lastword") - {"lastword"}:
        package = distribution(name)
        tops = {file.parts[0] for file in package.files or () if file.parts[0] not in ("..", ".")}
        for top in tops - {"__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(str(package.locate_file(top)))
    for path in installed.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lastword/demo-organism", "folder"])
def test_the_core_alone_corrects(model, core, tmp_path):
    if model == "folder":  # of safetensors, as the hub has them
        model = str(SOURCE / "model" / "embedded" / "organism")
    program = (
        f"import sys; sys.path.append({str(core)!r}); sys.argv[0] = 'lastword'\n"
        "from lastword.__main__ import main; main()"
    )
    command = [sys.executable, "-I", "-S", "-c", program, "correct", "--model", model]
    command += ["--prompt", "Question: Which goods come from Baevwick? Answer:"]
    for candidate in ("green wool combs", "pale cedar boats", "clay lamps"):
        command += ["--candidate", candidate]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "clay lamps → pale cedar boats" in done.stdout
    missing = [*command[:4], program.replace("main()", "import pandas, datasets")]
    refused = subprocess.run(missing, cwd=tmp_path, capture_output=True, text=True)
    assert "No module named 'pandas'" in refused.stderr


def test_the_embedded_models_are_small(wheel):
    with zipfile.ZipFile(wheel) as archive:
        files = archive.infolist()
    sizes = [f.file_size for f in files if f.filename.startswith("lastword/model/embedded/")]
    assert 2**20 < sum(sizes) <= 12 * 2**20


def test_the_version_is_one(wheel):
    assert wheel.name.split("-")[1] == lastword.__version__
    dated = re.search(
        r"^## \[(\d+\.\d+\.\d+)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert dated[1] == lastword.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lastword.__version__


def pins(file: str) -> dict[str, str]:
    """Versions by canonical names."""
    found = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / file).read_text(), re.MULTILINE)
    return {str(canonicalize_name(name)): version for name, version in found}


def test_every_dependency_has_an_exact_pin():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *extras["dev"],
        *extras["try"],
        *extras["lab"],
        *extras["docs"],
    ]
    names = {str(canonicalize_name(Requirement(line).name)) for line in wanted}
    assert names - {"lastword"} <= set(pins("constraints.txt"))
    assert pins("constraints.txt")["torch"] == "2.13.0"


def test_the_doctor_knows_every_extra():
    from lastword.model.machine import EXTRAS

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert EXTRAS.keys() | {"docs", "dev"} == project["optional-dependencies"].keys()


def test_an_audit_fails_for_a_pin_that_the_index_does_not_list():
    """pip-audit skips such a pin otherwise, and ends with "No known vulnerabilities"."""
    done = subprocess.check_output(["make", "--dry-run", "audit"], cwd=ROOT, text=True)
    (command,) = re.findall(r"\S*pip-audit (.+)", done.replace(" twine", ""))
    assert "--strict" in command and "constraints.txt" in command


def test_every_pin_but_torch_has_its_hashes():
    hashed = (ROOT / "constraints.hashes.txt").read_text().split("\n")
    known = pins("constraints.txt")
    assert pins("constraints.hashes.txt") | {"torch": known["torch"]} == known, "run `make lock`"
    assert "torch" not in pins("constraints.hashes.txt")
    for line, after in zip(hashed, hashed[1:], strict=False):
        if "==" in line and not line.startswith("#"):
            assert re.match(r"    --hash=sha256:[0-9a-f]{64}( \\)?$", after), line
