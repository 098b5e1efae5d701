"""Shapes are checked, torch runs on one thread, no test reaches the network or a user's runs."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jaxtyping

assert "lastword" not in sys.modules, "the hook that checks shapes has to come first"
_checked = jaxtyping.jaxtyped


def _checked_with_shapes(*, typechecker: Any) -> Callable[[Any], Any]:
    """Check only functions and dataclasses with arrays, since a checked call takes 50 µs."""

    def decorated(target: Any) -> Any:
        function = vars(target).get("__init__") if isinstance(target, type) else target
        if "jaxtyping" not in repr(getattr(function, "__annotations__", None)):
            return target
        return _checked(target, typechecker=typechecker)

    return decorated


jaxtyping.jaxtyped = _checked_with_shapes  # type: ignore[assignment]
jaxtyping.install_import_hook("lastword", "beartype.beartype")

import browser
import forked
import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

# Groups of files, by the ends of their names, that run in one process one after the other.
TOGETHER = {
    "the real model's": ("test_pages.py", "test_smollm2.py", "test_demo_tables.py"),
    # A node that starts next to one of another file runs out of time.
    "Ray's": ("test_engines.py", "test_nodes.py", "test_bulk.py"),
}
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the encoder that a user may have downloaded, since `try` includes it by default."""
    from lastword.model.named import PUBLISHED

    monkeypatch.setitem(PUBLISHED, "minilm", replace(PUBLISHED["minilm"], name="not-fetched"))


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same examples for every change, and new ones every night."""
    # No deadline: the time of an example depends on other work on the machine.
    nightly = config.getoption("--nightly")
    settings.register_profile("ours", deadline=None, derandomize=not nightly)
    settings.load_profile("ours")


def pytest_addoption(parser: pytest.Parser) -> None:
    description = "also run all rows of large test matrices (tests/tiers.py) and the evidence page"
    parser.addoption("--nightly", action="store_true", help=description)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files with slow tests come first, so that the rest divides evenly over the processes.
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)
    if not config.getoption("nightly"):
        for item in items:
            if item.get_closest_marker("nightly"):
                item.add_marker(pytest.mark.skip(reason="the night's"))


class Files(LoadFileScheduling):
    """Give each process one file at a time, or the files of a group."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return next((name for name, ends in TOGETHER.items() if file.endswith(ends)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return Files(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture
def temporary_datasets(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use a temporary cache of `datasets`."""
    import datasets

    folder = tmp_path_factory.getbasetemp() / "datasets"
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(folder))


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save no figures of a report: it is slow, and tests/lab does it."""
    monkeypatch.setattr("lastword.lab.report.draw.rendered", lambda figure, form: b"")


@pytest.fixture
def few_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the bag of words of `try` few candidates, which halves its time."""
    monkeypatch.setattr("lastword.probes.words.STRENGTHS", (10.0,))
    monkeypatch.setattr("lastword.probes.words.FOLDS", 2)


@pytest.fixture
def golden() -> Callable[[str, str], None]:
    """Compare the output of a command with a golden file; GOLDEN=new writes the file."""

    def compare(name: str, text: str) -> None:
        path = Path(__file__).parent / "cli" / "golden" / f"{name}.txt"
        if os.environ.get("GOLDEN") == "new":
            path.write_text(text, encoding="utf-8")
        hint = f"{path} differs; if this is intended: GOLDEN=new pytest -k NAME tests/cli"
        assert text == path.read_text(encoding="utf-8"), hint

    return compare


@pytest.fixture(scope="session")
def script() -> Callable[[str], ModuleType]:
    """Return a function that imports a script of `experiments/` by its name."""

    def imported(name: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(Path(__file__).parents[1] / "experiments")
            return importlib.import_module(name)

    return imported


@pytest.fixture(scope="session")
def forks() -> forked.Forks:
    """A runner of commands in new processes."""
    return forked.Forks()


@pytest.fixture(scope="session")
def once() -> Callable[[Any], Any]:
    """`Tracer.from_pretrained` that opens the real model once for all files, as it takes 30 s."""
    from lastword import Tracer
    from lastword.model import named
    from lastword.model.options import LoadOptions

    opened = Tracer.from_pretrained
    cached = cache(opened)
    real = named.PREFIX + named.PUBLISHED["smollm2-135m"].name

    def load(model: Any, **options: Any) -> Any:
        wanted = model if isinstance(model, LoadOptions) else LoadOptions(model, **options)
        return (cached if wanted.name == real else opened)(wanted)

    return load


@pytest.fixture(scope="module")
def chromium() -> Iterator[browser.Chromium]:
    """A browser for one file; while it runs, its thread can run no other event loop."""
    with browser.started() as ready:
        yield ready


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: (exit code, stdout, stderr)."""
    import lastword.cli

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["lastword", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            lastword.cli.main()
            sys.exit(0)
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call
