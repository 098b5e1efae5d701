"""`lastword lm-eval`: runs lm-evaluation-harness's command line with our model registered."""

import sys
from typing import Annotated

import typer

from lastword.errors import InputError

# lm_eval parses everything after the command's name, including --help.
PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}
NAME = "lastword lm-eval"
_COMMANDS = ("run", "ls", "validate")


def lm_eval(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run lm-evaluation-harness with corrected choices, and with the options of its command."""
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging

    from lastword.integrations.lm_eval import NAME as MODEL

    arguments = list(arguments or [])
    command = arguments.pop(0) if arguments and arguments[0] in _COMMANDS else "run"
    given = {argument.split("=")[0] for argument in arguments}
    if command == "run" and arguments and not given & {"--model", "-M", "--config", "-C"}:
        arguments = ["--model", MODEL, *arguments]
        if "--device" not in given:
            arguments += ["--device", "auto"]  # the harness's default is a GPU
    sys.argv = [NAME, command, *arguments]
    setup_logging()
    harness = HarnessCLI()
    options = harness.parse_args()
    try:
        harness.execute(options)
    except ConnectionError as error:
        raise InputError(
            f"the harness cannot download the data of its tasks: {error}; check the "
            "network, or give local tasks with --include_path"
        ) from error
