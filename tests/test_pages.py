"""Every command and program of README and of the docs runs unchanged.

A page runs from top to bottom in a separate folder. The models of the pages are folders there,
benchmarks are files in their published format, and variables such as `LASTWORD_EVAL_LIMIT` keep
runs small.
"""

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from pages import blocks, parts

from lastword import Tracer
from lastword.lab.benchmarks.ready import DEMO_PATH as PATH
from lastword.model import named
from lastword.model.embedded import FOLDER
from lastword.model.options import LoadOptions

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
REAL = named.PUBLISHED["smollm2-135m"]

# Pages with a separate test, because they use a running service.
ELSEWHERE = {
    "docs/service.md": "tests/service/test_service.py",
    "docs/operations.md": "tests/service/test_balancer.py",
    "docs/trust.md": "tests/cli/test_trust_tutorial.py",
}

# Beginnings of blocks and commands that do not run, with reasons.
LEFT_OUT = {
    "pip install": "it would change the environment of the tests",
    "make": "it installs the environment of the tests; CI calls `make test`",
    "lastword decide --engine ray": "it needs a bucket; tests/engines/test_bulk.py runs it",
    "LASTWORD_TOKEN=": "it needs GPUs, and listens on all addresses",
    "#!/bin/bash": "a job of Slurm",
    "job=$(sbatch": "it needs Slurm",
    "sbatch": "it needs Slurm",
    "lastword get minilm": "tests use no encoder that a user may have downloaded",
    "lastword label": "it serves a page; tests/service/test_label_page.py labels on it",
    "lastword lm-eval": "the harness fetches its tasks; tests/integrations runs it on others",
    "import lm_eval": "as the command",
    "inspect eval": "Inspect needs older packages than the pins; tests/integrations runs it",
    "python experiments/": "it takes an hour; its results are in the repository, with tests",
}

TICKETS = 60  # rows of a page's examples/tickets.csv, enough for a certificate
MORE_TICKETS = {"docs/probes.md": 100}


def arguments(command: str) -> list[str]:
    """Return the arguments of a command; one with `&` runs before the next command."""
    _, *words = shlex.split(command.replace("\\\n", " ").removesuffix("&"), comments=True)
    return words


def left_out(text: str) -> str | None:
    return next((start for start in LEFT_OUT if text.startswith(start)), None)


def typed(page: str) -> list[str]:
    return [part for block in blocks(PAGES[page]) for part in parts(block)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models, sets and files of the pages."""
    from published_sets import write_all

    folder = tmp_path_factory.mktemp("stage")
    write_all(folder / "data")
    for name in ("org/name", "Qwen/Qwen3-0.6B"):
        shutil.copytree(FOLDER / "organism", folder / name)
    _write_gguf(folder)
    rows = PATH.read_text(encoding="utf-8").splitlines()
    for name in ("items.jsonl", "mine.jsonl"):
        (folder / name).write_text("\n".join(rows[:4]), encoding="utf-8")
    return folder


def _write_examples(folder: Path, rows: int) -> None:
    """Copy the examples, with the first rows of the tickets only."""
    shutil.copytree(ROOT / "examples", folder)
    tickets = folder / "tickets.csv"
    table = tickets.read_text(encoding="utf-8").splitlines(keepends=True)
    tickets.write_text("".join(table[: rows + 1]), encoding="utf-8")


def _write_gguf(folder: Path) -> None:
    import gguf_files

    for name in ("models/file.Q4_K_M.gguf", "org/name-GGUF/name.Q8_0.gguf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        gguf_files.write(folder / name, gguf_files.build("llama"))


SMALL = {
    "LASTWORD_EVAL_LIMIT": "4",
    "LASTWORD_EVAL_DATA": "data",
    "LASTWORD_EVAL_LOAD": "overflow=truncate",  # the organism's context is 128 tokens
    "LASTWORD_COMPARE_LIMIT": "2",
    "LASTWORD_COMPARE_DATA": "data",
    "LASTWORD_COMPARE_LOAD": "overflow=truncate",
    "LASTWORD_BENCH_LIMIT": "2",
    "LASTWORD_BENCH_ROUNDS": "1",
    "LASTWORD_BENCH_DATA": "data",
    "LASTWORD_BENCH_TEMPLATE": "truthfulqa/zero-shot",
    "LASTWORD_TRY_BUDGET": "0s",
}


@pytest.fixture
def at_work(
    page: str,
    stage: Path,
    once: Callable[[LoadOptions], Tracer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undrawn: None,
    few_strengths: None,
) -> Path:
    """A separate folder for a page, with links to the stage's files."""
    for path in stage.iterdir():
        (tmp_path / path.name).symlink_to(path)
    _write_examples(tmp_path / "examples", MORE_TICKETS.get(page, TICKETS))
    monkeypatch.chdir(tmp_path)
    search = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for name, value in (SMALL | search).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Tracer, "from_pretrained", once)
    # Services start, but do not listen.
    monkeypatch.setattr("lastword.service.server.run", lambda app: None)
    return tmp_path


def shown_pages() -> list[str]:
    return [page for page in PAGES if page not in ELSEWHERE and typed(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", shown_pages())
def test_the_commands_of_a_page_run(page, at_work, run):
    names: dict[str, Any] = {}
    for block in blocks(PAGES[page]):
        todo = [part for part in parts(block) if runs(part)]
        printed = [output_of(part, names, run) for part in todo]
        if block.output is not None and todo:  # pages wrap lines like a terminal
            assert block.output.split() == printed[-1].split()


def runs(part: str) -> bool:
    return left_out(part) is None and ("smollm2" not in part or REAL.place is not None)


def output_of(part: str, names: dict[str, Any], run: Any) -> str:
    """Return the output of a command or a program."""
    if part.startswith("lastword "):
        code, out, err = run(*arguments(part))
        assert code == 0, f"{part}\n{err}"
        return out
    if "\n" in part and "import " in part:
        with redirect_stdout(io.StringIO()) as printed:
            exec(part, names)
        return printed.getvalue()
    return subprocess.run(["sh", "-c", part], check=True, capture_output=True, text=True).stdout
