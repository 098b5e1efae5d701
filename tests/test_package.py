"""The wheel is complete and runs outside the tree."""

import os
import re
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from installation import COMMAND, alone, environment, needed, required
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

import lastword
from lastword.cli import app

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
    """A folder outside the tree with only the wheel's content."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_has_every_file_of_the_package_but_models_of_a_checkout(wheel):
    ours = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and not {"__pycache__", "mix", "control.safetensors"} & set(path.parts)
    }
    with zipfile.ZipFile(wheel) as archive:
        packed = {n for n in archive.namelist() if n.startswith("lastword/")}
        assert any(n.endswith("licenses/LICENSE") for n in archive.namelist())
    assert packed == ours
    assert wheel.stat().st_size < 6_000_000
    assert "lastword/py.typed" in packed


def test_a_model_of_a_checkout_is_refused_with_advice_outside_the_tree(installed, tmp_path):
    (tmp_path / "items.jsonl").write_text('{"prompt": "The", "candidates": ["fox", "cat"]}\n')
    arguments = ["correct", "--input", "items.jsonl", "--model", "lastword/demo-mix"]
    command = [sys.executable, "-m", "lastword", *arguments]
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode and "pip install --editable ." in done.stderr


@pytest.fixture(scope="module")
def base(installed, tmp_path_factory) -> Path:
    return environment(installed, tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def core(installed, tmp_path_factory) -> Path:
    return environment(installed, tmp_path_factory.mktemp("core"), "model")


ROWS = [
    {"prediction": "ab"[n % 2], "truth": "ab"[n % 2 and n % 9 > 0], "confidence": 1 - n % 9 / 9}
    for n in range(300)
]


def write_rows(path: Path) -> None:
    """Write a plain table in the format of the file's ending."""
    frame = pd.DataFrame(ROWS)
    if path.suffix == ".jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        (frame.to_csv if path.suffix == ".csv" else frame.to_excel)(path, index=False)


@pytest.mark.parametrize("ending", ["csv", "xlsx", "jsonl", "parquet"])
def test_a_plain_table_is_certified_without_any_extra(ending, base, installed, tmp_path):
    write_rows(tmp_path / f"table.{ending}")
    arguments = ("certify", f"table.{ending}", "--out", "out/certificate.toml")
    done = alone(base, tmp_path, COMMAND, *arguments)
    if ending == "parquet":
        needs = 'Parquet needs pyarrow: pip install "lastword[parquet]"'
        assert (done.returncode, done.stdout) == (1, "") and needs in done.stderr
        (folder := tmp_path / "parquet").mkdir()
        environment(installed, folder, "parquet")
        done = alone(folder, tmp_path, COMMAND, *arguments)
    assert done.returncode == 0, done.stderr
    assert "of 300 labelled rows" in done.stdout
    assert "<svg" in (tmp_path / "out" / "certificate.html").read_text(encoding="utf-8")
    write_rows(tmp_path / "stream.jsonl")
    watched = alone(base, tmp_path, COMMAND, "monitor", "out/certificate.toml", "stream.jsonl")
    assert "300 labelled" in watched.stdout, watched.stderr


MODEL = ("--model", "lastword/demo-organism")
WITH_MODEL = {
    "demo": (),
    "label": (*MODEL, "--choices", "a,b", "table.csv"),
    "try": (*MODEL, "table.csv"),
    "correct": (*MODEL, "--prompt", "a", "--candidate", "b", "--candidate", "c"),
    "decide": (*MODEL, "--questions", "questions.yaml", "--text", "a"),
    "invariant": ("lastword/demo-organism",),
    "eval": (*MODEL, "--benchmark", "demo"),
    "paper": (),
    "merge": ("runs",),
    "report": ("runs",),
    "ablate": ("runs",),
    "certify": (".",),
    "compare": (*MODEL, "--benchmark", "demo"),
    "bench": (*MODEL, "--benchmark", "demo"),
    "lm-eval": ("--tasks", "a"),
    "serve": MODEL,
    "export": (*MODEL, "--questions", "questions.yaml", "folder"),
    "mcp": (*MODEL, "--questions", "questions.yaml"),
}
WITHOUT_MODEL = {"get", "models", "doctor", "monitor", "feedback"}


@pytest.mark.slow
def test_a_command_without_its_packages_names_their_installation_in_one_line(
    base, installed, tmp_path
):
    commands: Any = get_command(app)
    assert WITH_MODEL.keys() | WITHOUT_MODEL == commands.commands.keys()
    write_rows(tmp_path / "table.csv")
    (tmp_path / "questions.yaml").write_text("what: {options: [a, b]}", encoding="utf-8")
    packages, form = packages_distributions(), r'(\w+) is not installed: pip install "(\S+)"'
    for command, arguments in WITH_MODEL.items():
        done = alone(base, tmp_path, COMMAND, command, *arguments)
        assert done.returncode == 1 and done.stdout == "", command
        message = re.fullmatch(f"lastword: {form}\n", done.stderr)
        assert message, f"{command}: {done.stderr}"
        installs = needed(required(installed), Requirement(message[2]).extras)
        assert {canonicalize_name(name) for name in packages[message[1]]} <= installs, done.stderr


def test_commands_without_a_model_work_without_any_extra(base, tmp_path):
    for arguments in (["-V"], ["--help"], ["doctor"], ["models"], ["try", "-h"]):
        done = alone(base, tmp_path, COMMAND, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
    program = (
        "import lastword\nassert lastword.Item('a', ['b', 'c']).candidates\n"
        "try:\n    lastword.Tracer\nexcept lastword.TraceError as error:\n    print(error)\n"
        "from lastword import Decider"
    )
    done = alone(base, tmp_path, program)
    advice = 'is not installed: pip install "lastword[model]"\n'
    assert done.stdout.endswith(advice) and len(done.stdout.splitlines()) == 1
    assert "MissingPackageError" in done.stderr and done.stderr.endswith(advice)


@pytest.mark.slow
def test_the_model_extra_is_enough_to_correct(core, tmp_path):
    # A folder of safetensors, like on the hub.
    arguments = ["correct", "--model", str(SOURCE / "model" / "embedded" / "organism")]
    arguments += ["--prompt", "Question: Which goods come from Baevwick? Answer:"]
    for candidate in ("green wool combs", "pale cedar boats", "clay lamps"):
        arguments += ["--candidate", candidate]
    done = alone(core, tmp_path, COMMAND, *arguments)
    assert done.returncode == 0, done.stderr
    assert "clay lamps → pale cedar boats" in done.stdout
    refused = alone(core, tmp_path, "import pandas, datasets")
    assert "No module named 'pandas'" in refused.stderr


def test_versions_agree(wheel):
    assert wheel.name.split("-")[1] == lastword.__version__
    dated = re.search(
        r"^## \[(\d+\.\d+\.\d+)\] - ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert dated[1] == lastword.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == lastword.__version__
