"""Public names exist, and the command line starts without numerical libraries."""

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


def test_every_public_name_exists_and_is_documented():
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
def test_no_heavy_library_is_imported_by(program):
    report = "import sys; print('\\n', *sorted(n for n in sys.modules if '.' not in n))"
    assert HEAVY & set(printed(f"{program}\n{report}").splitlines()[-1].split()) == set()


def printed(program: str) -> str:
    """Return the output of a program in a new process."""
    return subprocess.check_output([sys.executable, "-c", program], text=True)


def test_modules_that_only_read_records_do_not_import_torch():
    rooms = ("lab.report.ablation", "records.cells", "lab.report.build", "cli.records")
    program = f"import sys, lastword.{', lastword.'.join(rooms)}; print('torch' in sys.modules)"
    assert printed(program) == "False\n"
