"""Options from variables: `LASTWORD_EVAL_LIMIT` is `--limit` of `eval`; a flag goes before it.

A variable is named after the long flag, whatever the parameter behind it is called.
"""

from collections.abc import Mapping
from typing import Any

from lastword.errors import InputError

# Surroundings may be a stranger's: what runs code of a checkpoint is asked for by hand.
BY_HAND = ("trust_remote_code", "allow_bin")


def name_variables(commands: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Let every option be had from the variable of its command and its long flag.

    Raises:
        InputError: One is named after a command and after none of the options that a variable sets.
    """
    for name, command in commands.items():
        prefix = f"LASTWORD_{_key(name)}_"
        names = set()
        for option in command.params:
            if option.param_type_name != "option":
                continue
            option.allow_from_autoenv = False  # that is the parameter's name
            if option.name not in BY_HAND:
                flags = [flag for flag in option.opts if flag.startswith("--")]
                own = [option.envvar] if isinstance(option.envvar, str) else option.envvar or []
                option.envvar = [*own, *(prefix + _key(flag) for flag in flags)]
                names |= set(option.envvar)
        if unknown := sorted(v for v in environment if v.startswith(prefix) and v not in names):
            fault = f"{unknown[0]} is set, and no variable of {name} is called so"
            raise InputError(f"{fault}: see {name} -h")


def _key(flag: str) -> str:
    return flag.lstrip("-").replace("-", "_").upper()
