"""The package works without the laboratory, the service and the engines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lastword

LEAVES = ("lab", "service", "engines")
PROGRAM = """
from contextlib import redirect_stdout, suppress
from io import StringIO
import json, sys
from lastword import Choice, Decider, Tracer, try_labels
from lastword.__main__ import main

def run(*arguments):
    sys.argv = ["lastword", *arguments]
    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        main()
    return printed.getvalue()

LEAVES = ("lastword.lab", "lastword.service", "lastword.engines")
rows = [{"text": f"note {i}", "label": ("fox", "bill")[i & 1]} for i in range(90)]
verdict = try_labels(rows, Tracer.demo(), out="tried", instructions="What is it?", budget=0)
assert verdict.items == 90
assert Decider.demo().decide("a fox", {"what": Choice("", ["fox", "bill"])})["what"].choice
assert "on 90 labelled items" in run("certify", "tried")
model = ("--model", "lastword/demo-organism", "--json")
correct = ("correct", "--prompt", "The", "--candidate", "fox", "--candidate", "bill")
assert json.loads(run(*correct, *model))["answer"] in ("fox", "bill")
decide = ("decide", "--questions", "tried/questions.yaml", "--text", "a bill")
assert "answer" in json.loads(run(*decide, *model))
assert not [name for name in sys.modules if name.startswith(LEAVES)]
"""


@pytest.mark.slow
def test_the_package_decides_tries_and_certifies_without_its_leaves(tmp_path: Path) -> None:
    root, source = tmp_path / "src", Path(lastword.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__", *LEAVES)
    shutil.copytree(source, root / "lastword", ignore=ignored)
    assert not any((root / "lastword" / leaf).exists() for leaf in LEAVES)
    environment = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
