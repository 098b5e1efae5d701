"""Every command and program of README and of the docs runs as it stands.

A page is gone through from top to bottom by copy and paste, in a folder of its own. Models that the
pages name are folders there, benchmarks are files in their published form, and variables
(`LASTWORD_EVAL_LIMIT`) keep runs small; the text of a page is changed in nothing.
"""

import io
import os
import re
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
from typer.main import get_command

from lastword import Tracer
from lastword.cli import app
from lastword.lab.benchmarks.demo import PATH
from lastword.model import named
from lastword.model.embedded import FOLDER
from lastword.model.options import LoadOptions

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
REAL = named.PUBLISHED["smollm2-135m"]

# Pages that a test of their own goes through, as a service is asked and told to stop in between.
ELSEWHERE = {
    "docs/service.md": "tests/service/test_service_docs.py",
    "docs/operations.md": "tests/service/test_deploy.py",
    "docs/trust.md": "tests/cli/test_trust_tutorial.py",
}

# Blocks and commands that are not run, by how they begin, and why.
LEFT_OUT = {
    "pip install": "it would change what the tests run in",
    "make": "it installs what the tests run in; CI calls `make test`",
    "lastword decide --engine ray": "it asks for a bucket; tests/engines/test_bulk.py runs it",
    "lastword eval --engine ray": "it asks for GPUs; tests/engines runs Ray without",
    "from functools import partial": "it starts Ray, which tests/engines does",
    "python -m venv vllm": "vLLM takes gigabytes; `make vllm` installs it",
    "lastword correct --engine vllm": "tests/engines runs it where vLLM is",
    "from pathlib import Path\n\nfrom lastword import DecideOptions\n": "as the command",
    "LASTWORD_TOKEN=": "it asks for GPUs, and listens to everybody",
    "#!/bin/bash": "a job of Slurm",
    "job=$(sbatch": "it needs Slurm",
    "sbatch": "it needs Slurm",
    "lastword label": "it serves a page; tests/service/test_label_page.py labels on it",
    "lastword lm-eval": "the harness fetches its tasks; tests/integrations runs it on others",
    "import lm_eval": "as the command",
    "inspect eval": "Inspect wants older packages than the pins; tests/integrations runs it",
    "python examples/polygraph/": "lm-polygraph wants an environment of its own; so does its test",
    "OMP_NUM_THREADS=1 RAY_worker_niceness=0 python experiments/": "as the next lines",
    "OMP_NUM_THREADS=1 python experiments/": "as the next line",
    "python experiments/": "an hour and more; what it makes is in the repository and held by tests",
}

# Commands of several pages, whose files no later command reads: they run on the first page.
ONCE = ("lastword demo", "lastword try examples/tickets.csv")
TICKETS = 100  # rows of the stage's examples/tickets.csv


def arguments(command: str) -> list[str]:
    """What follows the program's name; what would run beside the next command is run before it."""
    _, *given = shlex.split(command.replace("\\\n", " ").removesuffix("&"), comments=True)
    return given


def left_out(text: str) -> str | None:
    return next((start for start in LEFT_OUT if text.startswith(start)), None)


def typed(page: str) -> list[str]:
    return [part for block in blocks(PAGES[page]) for part in parts(block)]


def test_the_tables_of_what_is_not_run_are_not_stale():
    everything = [part for page in PAGES for part in typed(page)]
    for start in (*LEFT_OUT, *ONCE):
        assert any(part.startswith(start) for part in everything), start
    for page, test in ELSEWHERE.items():
        assert blocks(PAGES[page])
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the names of the pages are models, sets and files."""
    from published_sets import write_all

    folder = tmp_path_factory.mktemp("stage")
    write_all(folder / "data")
    for name in ("org/name", "Qwen/Qwen3-0.6B"):
        shutil.copytree(FOLDER / "organism", folder / name)
    _write_gguf(folder)
    _write_mmlu(folder / "cais" / "mmlu")
    rows = PATH.read_text(encoding="utf-8").splitlines()
    for name in ("items.jsonl", "mine.jsonl"):
        (folder / name).write_text("\n".join(rows[:4]), encoding="utf-8")
    shutil.copytree(ROOT / "examples", folder / "examples")
    tickets = folder / "examples" / "tickets.csv"
    table = tickets.read_text(encoding="utf-8").splitlines(keepends=True)
    tickets.write_text("".join(table[: TICKETS + 1]), encoding="utf-8")
    return folder


def _write_gguf(folder: Path) -> None:
    import gguf_files

    for name in ("models/file.Q4_K_M.gguf", "org/name-GGUF/name.Q8_0.gguf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        gguf_files.write(folder / name, gguf_files.build("llama"))


def _write_mmlu(folder: Path) -> None:
    """A set in the form of the hub's, with one configuration of one split."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    rows = [{"question": f"Where is {n}?", "choices": ["here", "there"], "answer": 1} for n in "ab"]
    pq.write_table(pa.Table.from_pylist(rows), folder / "test.parquet")
    split = "data_files: [{split: test, path: test.parquet}]"
    (folder / "README.md").write_text(f"---\nconfigs: [{{config_name: anatomy, {split}}}]\n---\n")


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
    stage: Path,
    once: Callable[[LoadOptions], Tracer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    undrawn: None,
    few_strengths: None,
) -> Path:
    """A page's own folder, in which the stage's files lie."""
    import datasets

    for path in stage.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    own = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for name, value in (SMALL | own | {"HF_DATASETS_CACHE": str(tmp_path / "datasets")}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Tracer, "from_pretrained", once)
    # A service is made ready, and does not listen.
    monkeypatch.setattr("lastword.service.server.run", lambda app: None)
    return tmp_path


@pytest.fixture(scope="module")
def printed_once() -> dict[str, str]:
    """What commands of ONCE have printed on a page before."""
    return {}


def shown_pages() -> list[str]:
    return [page for page in PAGES if page not in ELSEWHERE and typed(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", shown_pages())
def test_a_page_by_copy_and_paste(page, at_work, run, printed_once):
    names: dict[str, Any] = {}
    for block in blocks(PAGES[page]):
        todo = [part for part in parts(block) if runs(part)]
        printed = [printed_once.get(part) or typed_in(part, names, run) for part in todo]
        printed_once.update(
            (part, out) for part, out in zip(todo, printed, strict=True) if part.startswith(ONCE)
        )
        if block.output is not None and todo:  # lines are folded there as a terminal folds them
            assert block.output.split() == printed[-1].split()


def runs(part: str) -> bool:
    return left_out(part) is None and ("smollm2" not in part or named.find(REAL) is not None)


def typed_in(part: str, names: dict[str, Any], run: Any) -> str:
    """What a command or a program prints."""
    if part.startswith("lastword "):
        code, out, err = run(*arguments(part))
        assert code == 0, f"{part}\n{err}"
        return out
    if "\n" in part and "import " in part:
        with redirect_stdout(io.StringIO()) as printed:
            exec(part, names)
        return printed.getvalue()
    return subprocess.run(["sh", "-c", part], check=True, capture_output=True, text=True).stdout


OTHERS = {"--config", "--help", "--post", "--setup"}  # of the harness, releases and scripts


@pytest.mark.parametrize("page", PAGES)
def test_every_option_of_a_page_is_one_of_a_command(page):
    every: Any = get_command(app)
    options = [p for command in every.commands.values() for p in command.params]
    known = OTHERS.union(*(p.opts + p.secondary_opts for p in options))
    assert {*re.findall(r"`(--[a-z-]+)", PAGES[page])} <= known
