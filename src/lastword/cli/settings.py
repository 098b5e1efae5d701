"""Options from variables, and from `lastword.toml` of the working folder or LASTWORD_CONFIG's file.

A key at the top is an option of every command that has it, a table is a command's own:

    model = "Qwen/Qwen3-0.6B"

    [eval]
    benchmark = ["truthfulqa", "everyday"]

A flag goes before a variable (`LASTWORD_EVAL_LIMIT`), and that before the file. Both are written as
the long flag is, whatever the parameter behind it is called.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lastword.errors import InputError

NAME = "lastword.toml"
# A folder may be a stranger's: what runs code of a checkpoint is asked for by hand.
BY_HAND = ("trust_remote_code", "allow_bin")
# Neither names a stranger's file a program that is run, a cluster that is joined or an address that
# is listened on; the file of LASTWORD_CONFIG is the user's own.
_OWN_ALONE = ("vllm_python", "vllm_options", "address", "host")
_MOST_BYTES = 2**20


def find() -> Path | None:
    """The file that is read; None where there is none.

    Raises:
        InputError: LASTWORD_CONFIG names a file that does not exist.
    """
    variable = os.environ.get("LASTWORD_CONFIG")
    if variable and not Path(variable).is_file():
        raise InputError(f"LASTWORD_CONFIG names {variable}, and there is no such file")
    path = Path(variable or NAME)
    return path if path.is_file() else None


def name_variables(commands: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Let every option be had from the variable of its command and its long flag.

    Args:
        commands: click's commands by name.
        environment: The variables that are set.

    Raises:
        InputError: One is named after a command and after none of the options that a variable sets.
    """
    for name, command in commands.items():
        prefix = f"LASTWORD_{_key(name).upper()}_"
        names = set()
        for option in _own(command):
            option.allow_from_autoenv = False  # that is the parameter's name
            if option.name not in BY_HAND:
                option.envvar = [*_listed(option.envvar), *_variables(prefix, option)]
                names |= set(option.envvar)
        if unknown := sorted(v for v in environment if v.startswith(prefix) and v not in names):
            fault = f"{unknown[0]} is set, and no variable of {name} is called so"
            raise InputError(f"{fault}: see {name} -h")


def _variables(prefix: str, option: Any) -> list[str]:
    return [prefix + _key(flag).upper() for flag in option.opts if flag.startswith("--")]


def _listed(variable: str | Sequence[str] | None) -> Sequence[str]:
    return [variable] if isinstance(variable, str) else variable or []


def _own(command: Any) -> list[Any]:
    return [option for option in command.params if option.param_type_name == "option"]


def defaults(commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The file's values by command and parameter, as click takes them; empty without a file.

    Args:
        commands: click's commands by name.

    Raises:
        InputError: The file is no TOML, or names an option or a command that is none.
    """
    path = find()
    if path is None:
        return {}
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path} has more than {_MOST_BYTES} bytes, which no options take")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    options = {name: _options(command) for name, command in commands.items()}
    own = {name: table for name, table in values.items() if isinstance(table, dict)}
    shared = {name: value for name, value in values.items() if name not in own}
    for name in shared:
        if not any(_key(name) in flags for flags in options.values()):
            raise InputError(f"{path}: no command has an option {name}")
    for name, table in own.items():
        _check(path, name, table, options)
    return {
        name: _values(path, shared, flags) | _values(path, own.get(name, {}), flags)
        for name, flags in options.items()
    }


def _check(path: Path, name: str, table: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    if name not in options:
        raise InputError(f"{path}: [{name}] is no command; there are {', '.join(options)}")
    if unknown := [key for key in table if _key(key) not in options[name]]:
        raise InputError(f"{path}: {name} has no option {unknown[0]}")


def _options(command: Any) -> dict[str, Any]:
    """Give a command's options by the flags that a user may write."""
    return {_key(flag): option for option in _own(command) for flag in option.opts}


def _key(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _values(path: Path, values: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    content = {}
    for name, value in values.items():
        option = options.get(_key(name))
        if option is None:
            continue
        if option.name in BY_HAND:
            raise InputError(f"{path}: {name} is given on the command line alone")
        if option.name in _OWN_ALONE and not os.environ.get("LASTWORD_CONFIG"):
            where = "on the command line, by variable or in the file that LASTWORD_CONFIG names"
            raise InputError(f"{path}: {name} is given {where}, not in a folder's file")
        content[option.name] = [value] if option.multiple and not isinstance(value, list) else value
    return content
