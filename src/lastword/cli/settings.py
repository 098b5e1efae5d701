"""Options from variables: `LASTWORD_EVAL_LIMIT` is `--limit` of `eval`; a flag goes before it."""

from collections.abc import Iterable, Mapping
from typing import Any

from lastword.errors import InputError


def refuse_unknown_variables(commands: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a variable that is named after a command but after none of its options.

    Raises:
        InputError: The first such variable.
    """
    every = [option for parsed in commands.values() for option in parsed.params]
    others = {option.envvar for option in every}  # LASTWORD_LABEL_TOKEN is of `serve`
    names = sorted({*names} - others)
    for command, parsed in commands.items():
        prefix = f"LASTWORD_{command.replace('-', '_').upper()}_"
        options = [p for p in parsed.params if getattr(p, "allow_from_autoenv", False)]
        variables = {prefix + p.name.upper() for p in options}
        for name in names:
            if name.startswith(prefix) and name not in variables:
                raise InputError(
                    f"{name} is set, but `lastword {command}` has no such option: see "
                    f"lastword {command} --help"
                )
