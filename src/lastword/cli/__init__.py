"""The command line: parse, one library call, print.

Results go to stdout, progress to stderr; a known error is one line and exit 1, bad usage exit 2.

A command is a module of this folder with one function, named in `GROUPS`. Its module imports
nothing but typer and light modules (`model`, `output`, `progress`, `lastword.errors`) at the top
and the library inside the function, so that `lastword --help` answers at once. Options that go
together are one argument (`groups`): a command that runs a model takes `model: Model`, one that
runs several takes `models: Models`.
"""

import errno
import os
import sys
from collections.abc import Callable
from itertools import chain
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from lastword.cli.ablate import ablate
from lastword.cli.bench import bench
from lastword.cli.certify import certify
from lastword.cli.compare import compare
from lastword.cli.correct import correct
from lastword.cli.decide import decide
from lastword.cli.demo import demo
from lastword.cli.doctor import doctor
from lastword.cli.evaluate import eval_
from lastword.cli.get import get
from lastword.cli.groups import flattened
from lastword.cli.invariant import invariant
from lastword.cli.labels import labels
from lastword.cli.lm_eval import PASSED_ON, lm_eval
from lastword.cli.mcp import mcp
from lastword.cli.merge import merge
from lastword.cli.models import models
from lastword.cli.output import printable
from lastword.cli.panels import Panelled
from lastword.cli.report import report
from lastword.cli.serve import serve
from lastword.cli.settings import name_variables
from lastword.cli.try_ import try_
from lastword.errors import TraceError

# What the package's extras install, by the name under which it is imported.
EXTRAS = {
    "accelerate": "large",
    "bitsandbytes": "quant",
    "datasets": "eval",
    "fastapi": "serve",
    "gguf": "gguf",
    "granian": "serve",
    "lm_eval": "eval",
    "matplotlib": "eval",
    "mcp": "mcp",
    "pandas": "eval",
    "peft": "large",
    "prometheus_client": "serve",
    "psutil": "bench",
    "psycopg": "postgres",
    "pyarrow": "eval",
    "ray": "ray",
    "tomli_w": "eval",
    "upath": "eval",
    "yaml": "eval",
}

# The commands, as `lastword --help` tells of them.
GROUPS: dict[str, tuple[Callable[..., None], ...]] = {
    "Try it": (demo, get, models, doctor),
    "Your model": (try_, correct, decide, invariant),
    "The lab": (eval_, merge, report, ablate, compare, certify, bench, lm_eval),
    "Serve": (serve, labels, mcp),
}


class Grouped(TyperGroup):
    """The commands in groups, each with its whole summary."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group."""
        for title, commands in GROUPS.items():
            rows = [(name, self.get_command(ctx, name)) for name in map(_name, commands)]
            with formatter.section(title):
                formatter.write_dl([(n, c.get_short_help_str(10_000)) for n, c in rows if c])


def _name(command: Callable[..., None]) -> str:
    return command.__name__.strip("_").replace("_", "-")


app = typer.Typer(
    cls=Grouped,
    help="A language model has to pick one of your options: a label, a tool, an answer. lastword "
    "makes that pick better where it can prove it on questions that you have labelled.",
    epilog="Every option may also stand in a variable, as LASTWORD_EVAL_LIMIT for `eval --limit`; "
    "a flag goes before it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in chain.from_iterable(GROUPS.values()):
    context = PASSED_ON if command is lm_eval else None
    app.command(_name(command), cls=Panelled, context_settings=context)(flattened(command))


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        from lastword.version import __version__

        typer.echo(__version__)
        raise typer.Exit


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def main() -> None:
    """Run the command line; exit with 1 after a known error, with 2 after bad usage."""
    try:
        command: Any = get_command(app)
        for option in command.params:
            option.allow_from_autoenv = False  # LASTWORD_VERSION may be somebody's own
        name_variables(command.commands, os.environ)
        command(prog_name="lastword", auto_envvar_prefix="LASTWORD")
        return
    except TraceError as error:
        said = str(error)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        said = f"{error.strerror}: make room, and run it again"
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".")[0])
        if extra is None:
            raise
        said = f"{error.name} is not installed; pip install 'lastword[{extra}]'"
    print(printable(f"lastword: {said}"), file=sys.stderr)  # one line, whatever it quotes
    sys.exit(1)
