"""Every command and program of README and of the docs runs as it stands.

A page is gone through from top to bottom by copy and paste, in a folder of its own. Models that the
pages name are folders there, benchmarks are files in their published form, and variables
(`TRACELM_EVAL_LIMIT`) keep runs small; the text of a page is changed in nothing.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tracelm.model import named
from tracelm.model.embedded import FOLDER

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
}
FENCE = re.compile(r"^```([\w+-]*)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
TYPED = ("sh", "console", "python")  # other blocks show what is printed, or a file
REAL = named.PUBLISHED["smollm2-135m"]

# Pages that a test of their own goes through, as a service is asked and told to stop in between.
ELSEWHERE = {
    "docs/service.md": "tests/service/test_service_docs.py",
    "docs/trust.md": "tests/cli/test_trust_tutorial.py",
}

# Blocks and commands that are not run, by how they begin, and why.
LEFT_OUT = {
    "pip install": "it would change what the tests run in",
    "make ": "the first runs all of this; test_docs.py holds that the targets exist",
    "tracelm eval --preset paper": "the paper's models, of up to 120B parameters, from the hub",
    "tracelm eval --engine ray": "it asks for GPUs; tests/engines runs Ray without",
    "from functools import partial": "it starts Ray, which tests/engines does",
    "TRACELM_TOKEN=": "it asks for GPUs, and listens to everybody",
    "#!/bin/bash": "a job of Slurm",
    "job=$(sbatch": "it needs Slurm",
    "sbatch": "it needs Slurm",
    "torchrun": "tests/model/test_ranks.py runs torchrun",
    "tracelm lm-eval": "the harness fetches its tasks; tests/integrations runs it on tasks of ours",
    "import lm_eval": "as the command",
    "inspect eval": "Inspect wants older packages than the pins; tests/integrations runs it",
    "python examples/polygraph/": "lm-polygraph wants an environment of its own; so does its test",
    "python benchmarks/": "an hour and more; what it makes is in the repository and held by tests",
    "tracelm report evidence/own": "it reads what the line above it made in an hour",
}


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """What a page has people type: (language, text), in order."""
    for kind, text in FENCE.findall(PAGES[page]):
        if kind in TYPED:
            yield kind, text


def commands(text: str) -> Iterator[str]:
    """The commands of a block; one ends with its line unless a quote or a backslash goes on."""
    command = ""
    for line in text.splitlines(keepends=True):
        command += line
        try:
            shlex.split(command, comments=True)
        except ValueError:  # a quote is open, or the last character is a backslash
            continue
        if not command.endswith("\\\n"):
            if shlex.split(command, comments=True):
                yield command.strip()
            command = ""


def arguments(command: str) -> list[str]:
    """What follows the program's name; what would run beside the next command is run before it."""
    _, *given = shlex.split(command.replace("\\\n", " ").removesuffix("&"), comments=True)
    return given


def left_out(text: str) -> str | None:
    return next((start for start in LEFT_OUT if text.startswith(start)), None)


def typed(page: str) -> list[str]:
    """Programs as they are, and each command of a shell's block."""
    parts: list[str] = []
    for kind, text in blocks(page):
        whole = kind == "python" or text.startswith("#!")
        parts += [text] if whole else commands(text)
    return parts


def test_the_tables_of_what_is_not_run_are_not_stale():
    everything = [part for page in PAGES for part in typed(page)]
    for start in LEFT_OUT:
        assert any(part.startswith(start) for part in everything), start
    for page, test in ELSEWHERE.items():
        assert list(blocks(page)) and page in PAGES
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
    rows = (FOLDER.parents[1] / "demo" / "benchmark.jsonl").read_text(encoding="utf-8").splitlines()
    for name in ("items.jsonl", "mine.jsonl"):
        (folder / name).write_text("\n".join(rows[:4]), encoding="utf-8")
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
    "TRACELM_EVAL_LIMIT": "4",
    "TRACELM_EVAL_DATA": "data",
    "TRACELM_EVAL_OVERFLOW": "truncate",  # the organism's context is 128 tokens
    "TRACELM_COMPARE_LIMIT": "2",
    "TRACELM_COMPARE_DATA": "data",
    "TRACELM_COMPARE_OVERFLOW": "truncate",
    "TRACELM_BENCH_LIMIT": "2",
    "TRACELM_BENCH_ROUNDS": "1",
    "TRACELM_BENCH_DATA": "data",
    "TRACELM_BENCH_TEMPLATE": "truthfulqa/zero-shot",
}


@pytest.fixture
def at_work(stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page's own folder, in which the stage's files lie."""
    import datasets

    for path in stage.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    own = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for name, value in (SMALL | own | {"HF_DATASETS_CACHE": str(tmp_path / "datasets")}).items():
        monkeypatch.setenv(name, value)
    # A service is made ready, and does not listen; its explorer's page has tests/service.
    monkeypatch.setattr("tracelm.service.server.run", lambda app: None)
    monkeypatch.setattr(
        "tracelm.service.explorer.page.mount", lambda app, correctors, runs=None: None
    )
    return tmp_path


def shown_pages() -> list[str]:
    return [page for page in PAGES if page not in ELSEWHERE and typed(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", shown_pages())
def test_a_page_by_copy_and_paste(page: str, at_work: Path, run: Any) -> None:
    names: dict[str, Any] = {}
    for part in typed(page):
        if left_out(part) is not None or ("smollm2" in part and named.find(REAL) is None):
            continue
        if part.startswith("tracelm "):
            code, _, err = run(*arguments(part))
            assert code == 0, f"{part}\n{err}"
        elif "\n" in part and "import " in part:
            exec(part, names)
        else:
            subprocess.run(["sh", "-c", part], cwd=at_work, check=True)


@pytest.mark.slow
@pytest.mark.skipif(named.find(REAL) is None, reason=f"no {REAL.file}: {REAL.advice}")
def test_readme_shows_what_its_command_prints(at_work: Path, run: Any) -> None:
    asked = [part for part in typed("README.md") if part.startswith("tracelm correct")]
    (command,) = (part for part in asked if "smollm2" in part)
    (shown,) = (text for kind, text in FENCE.findall(PAGES["README.md"]) if kind == "")
    code, out, err = run(*arguments(command))
    assert (code, err) == (0, "")
    assert shown.split() == out.split()  # lines are folded there as a terminal folds them


def test_readme_is_short_and_its_picture_stands_before_the_words_of_the_method():
    page = PAGES["README.md"]
    assert len(page.splitlines()) <= 120
    before = page[: page.index(".svg)")].lower()
    for word in ("depth", "gate", "i(m)", "organism"):
        assert not re.search(rf"\b{re.escape(word)}", before), word


def rows(page: str, heading: str) -> list[dict[str, str]]:
    """The rows of a page's first table with a heading, by column."""
    text = PAGES[page]
    lines = text[text.index(f"| {heading}") :].partition("\n\n")[0].splitlines()
    titles, _, *cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return [dict(zip(titles, row, strict=True)) for row in cells]


COLUMNS = {
    "questions": "Items",
    "the model": "Base",
    "TRACE": "TRACE",
    "fixed": "Fixed",
    "broken": "Broken",
    "question left out": "Blind",
}


def test_readmes_figures_are_those_of_the_evidence():
    known = {row["Cell"]: row for row in rows("docs/evidence.md", "Cell ")}
    shown = rows("README.md", "benchmark |")
    assert {row["benchmark"] for row in shown} >= {"everyday", "FACTOR, news", "FIB"}
    for row in shown:
        for ours, theirs in COLUMNS.items():
            assert row[ours] == known[row["benchmark"]][theirs], row["benchmark"]
