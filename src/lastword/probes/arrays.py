"""Arrays in a probe's file: each value of the JSON is the name of an array beside it."""

from typing import Annotated, Any

import numpy as np
from pydantic import Field, SerializationInfo, ValidationInfo
from pydantic_core import core_schema

from lastword.errors import InputError

MOST, LEAST = 1e60, 1e-13  # limits of the numbers in a file; squared distances may be large

Temperature = Annotated[float, Field(ge=1e-4, le=1e4)]


def _read(name: Any, info: ValidationInfo[Any]) -> np.ndarray:
    array = info.context.get(name) if isinstance(name, str) else None
    if not isinstance(array, np.ndarray):
        raise ValueError("is no array of the file")
    if array.dtype.kind != "f" or not (np.abs(array) <= MOST).all():
        raise ValueError(f"are not all numbers of at most {MOST:g}")
    return array


def _write(array: np.ndarray, info: SerializationInfo[Any]) -> str:
    name = f"array{len(info.context)}"
    info.context[name] = array
    return name


class _Array:
    """Reads an array from the context of a validation, and writes it to that of a dump."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        write = core_schema.plain_serializer_function_ser_schema(_write, info_arg=True)
        return core_schema.with_info_plain_validator_function(_read, serialization=write)


ARRAY = _Array()


def require_shapes(owner: Any, **shapes: tuple[int, ...]) -> None:
    """Refuse arrays of other shapes, as a damaged file may have."""
    for name, shape in shapes.items():
        if (actual := getattr(owner, name).shape) != shape:
            raise InputError(f"its {name} are {actual}, expected {shape}")
