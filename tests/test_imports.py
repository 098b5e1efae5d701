"""Public names exist, and the command line starts without the libraries that compute."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import lastword

REPOSITORY = Path(__file__).resolve().parents[1]
HEAVY = set(
    "accelerate datasets lm_eval matplotlib numpy pandas pyarrow scipy tokenizers torch "
    "transformers".split()
)


def test_every_public_name_is_found_and_told():
    page, reference = (
        (REPOSITORY / "docs" / name).read_text(encoding="utf-8") for name in ("python.md", "api.md")
    )
    for name in lastword.__all__:
        assert getattr(lastword, name).__name__ == name
        assert name in dir(lastword)
        assert name in lastword.__doc__ and f"`{name}`" in page
        assert f"::: lastword.{name}\n" in reference
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        lastword.Nothing  # noqa: B018


def test_the_example_of_the_package_runs():
    done = doctest.testmod(lastword)
    assert done.attempted >= 5 and done.failed == 0


@pytest.mark.parametrize(
    "program",
    [
        "import lastword",
        "from lastword import Item, Theta",
        *(
            f"import sys; sys.argv = ['lastword', *{arguments}]\nfrom lastword.cli import main\n"
            "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code"
            for arguments in (["--help"], ["--version"], ["correct", "--help"])
        ),
    ],
)
def test_nothing_heavy_is_imported_by(program):
    report = "import sys; print('\\n', *sorted(n for n in sys.modules if '.' not in n))"
    assert HEAVY & set(printed(f"{program}\n{report}").splitlines()[-1].split()) == set()


def printed(program: str) -> str:
    """What a program prints in a process of its own."""
    return subprocess.check_output([sys.executable, "-c", program], text=True)


def test_what_reads_records_alone_does_without_torch():
    rooms = ("lab.report.ablation", "records.stored", "lab.report.build", "cli.merge", "cli.report")
    program = f"import sys, lastword.{', lastword.'.join(rooms)}; print('torch' in sys.modules)"
    assert printed(program) == "False\n"
