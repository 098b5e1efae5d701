"""Types of the fields of pydantic's dataclasses, and its errors in one line."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Strict, ValidationError, model_validator

from lastword.errors import InputError
from lastword.files.cells import text_fault
from lastword.files.wording import shorten

CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_SHOWN = 80  # maximum characters of a refused value


def _readable(text: str) -> str:
    if (fault := text_fault(text)) is not None:
        raise ValueError(fault)
    return text


# Without conversions: neither is "1" a number nor True.
Number = Annotated[float, Strict()]
Whole = Annotated[int, Strict()]
Flag = Annotated[bool, Strict()]
Text = Annotated[str, Strict(), AfterValidator(_readable)]


def first_fault(error: ValidationError, names: Sequence[str] = ()) -> str:
    """Return the first fault that pydantic found, given the names of the fields in order."""
    fault = error.errors(include_url=False)[0]
    loc = [*fault["loc"]]
    if loc and isinstance(loc[0], int) and names:
        loc[0] = names[loc[0]]
    place = ".".join(map(str, loc))
    match fault["type"]:
        case "missing" | "missing_argument":
            return f"{place} is missing"
        case "unexpected_keyword_argument":
            known = f"; known: {', '.join(names)}" if len(loc) == 1 and names else ""
            return f"{place} is an unknown name{known}"
        case "value_error":
            return f"{place} {fault['ctx']['error']}".lstrip()
        case "string_unicode":
            return f"{place} {text_fault(fault['input'])}"
    expected = fault["msg"].replace("Input should be", "expected").replace("valid tuple", "list")
    return f"{place}: {expected}, not {shown(fault['input'])}".removeprefix(": ")


def shown(value: Any) -> str:
    """Return a refused value in a message: shortened, and null for None."""
    return "null" if value is None else shorten(repr(value), _SHOWN)


def checked(error: Callable[[str], InputError]) -> Any:
    """Return a class's validator that turns pydantic's errors into the first one, in one line."""

    def validate(cls: Any, value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value)
        except ValidationError as faults:
            raise error(first_fault(faults, [field.name for field in fields(cls)])) from faults

    return model_validator(mode="wrap")(classmethod(validate))  # type: ignore[arg-type]
