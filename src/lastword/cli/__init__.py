"""The command line: each command parses, makes one library call, and prints.

Results go to stdout, progress to stderr. A known error is one line and exit 1, bad usage exit 2.

A command is a module of this folder with one plain typer function. Its module imports typer and
light modules (`options`, `model`, `output`, `progress`, `lastword.errors`) at the top, and the
library inside the function, so that `lastword --help` starts quickly. Options that several commands
share are in `options`.
"""

import errno
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.main import get_command

from lastword.cli.bench import bench
from lastword.cli.certify import certify
from lastword.cli.compare import compare
from lastword.cli.correct import correct
from lastword.cli.decide import decide
from lastword.cli.demo import demo
from lastword.cli.evaluate import eval_
from lastword.cli.export import export
from lastword.cli.feedback import feedback
from lastword.cli.invariant import invariant
from lastword.cli.label import label
from lastword.cli.lm_eval import PASSED_ON, lm_eval
from lastword.cli.machine import doctor, get, models
from lastword.cli.mcp import mcp
from lastword.cli.monitor import monitor
from lastword.cli.options import with_groups
from lastword.cli.output import printable
from lastword.cli.paper import paper
from lastword.cli.records import ablate, merge, report
from lastword.cli.try_ import try_
from lastword.errors import TraceError, missing_package
from lastword.files.wording import shorten

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Your task": (label, try_, decide, certify, monitor),
    "Start": (demo, get, doctor),
    "Research": (correct, eval_, paper, report, ablate, compare, bench, invariant, lm_eval),
    "The rest": (merge, models, export, feedback, mcp),
}
if find_spec("lastword.service"):  # a leaf: everything else works without it
    from lastword.cli.serve import serve

    COMMANDS["Your task"] = (label, try_, decide, serve, certify, monitor)

app = typer.Typer(
    help="Language models often have to choose from fixed options: a label, a tool, an answer. "
    "lastword improves the choice, and proves the gain on examples that you have labelled.",
    epilog="Every option can be set by a variable, such as LASTWORD_EVAL_LIMIT for `eval --limit`. "
    "An option on the command line has precedence.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _commands in COMMANDS.items():
    for _command in _commands:
        _name = _command.__name__.strip("_").replace("_", "-")
        _settings = PASSED_ON if _command is lm_eval else None
        app.command(_name, rich_help_panel=_panel, context_settings=_settings)(
            with_groups(_command)
        )


def _print_version(wanted: bool) -> bool:
    if wanted:
        from lastword.version import __version__

        typer.echo(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            allow_from_autoenv=False,  # other programs may set LASTWORD_VERSION
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    pass


# typer does not export the base class of usage errors.
_UsageError: Any = typer.BadParameter.__base__
_LONGEST = 2000  # maximum number of characters of an error message
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def main() -> None:
    """Run the command line; exit with 1 after a known error, with 2 after bad usage."""
    command: Any = get_command(app)
    for parsed in (command, *command.commands.values()):
        for parameter in parsed.params:
            parameter.show_envvar = False  # the epilog explains the variables once
    try:
        sys.exit(
            command(prog_name="lastword", auto_envvar_prefix="LASTWORD", standalone_mode=False)
        )
    except _UsageError as error:
        error.show()  # plain lines instead of typer's box
        sys.exit(error.exit_code)
    except TraceError as error:
        reason = str(error)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        reason = f"{error.strerror}: make room, and run it again"
    except ModuleNotFoundError as error:
        name = next((word for word in sys.argv[1:] if word in command.commands), "")
        if (missing := missing_package(error, name)) is None:
            raise
        reason = str(missing)
    # An error may quote long texts with line breaks; it is printed as one short line.
    print(printable(shorten(f"lastword: {reason}", _LONGEST)), file=sys.stderr)
    sys.exit(1)
