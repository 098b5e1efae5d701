"""Call: one request, as the handlers of all dialects get it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated

import pydantic_core
from fastapi import Depends, Request, Response

from lastword.files.strict_json import to_json
from lastword.records.decision import SCHEMA
from lastword.service.schema import Object
from lastword.service.service import Service

JSON = "application/json"


@dataclass(frozen=True)
class Call:
    """One request: the service, its id from the guard, its client, and the bytes of its body."""

    service: Service
    id: str
    client: Hashable
    size: int


async def _call(request: Request) -> Call:
    """Return the call of a request; async, because FastAPI runs other functions in a thread."""
    service, size = request.app.state.service, len(await request.body())
    return Call(service, request.state.request, request.client, size)


ThisCall = Annotated[Call, Depends(_call)]


def plain_answer(value: Object) -> Response:
    """Return a response in a client's form, in a tenth of the time of FastAPI's."""
    return Response(pydantic_core.to_json(value, inf_nan_mode="null"), media_type=JSON)


def json_of(value: Object) -> Response:
    """Return a response in the service's form: strict JSON, with the schema version first."""
    return Response(to_json({"schema": SCHEMA} | value), media_type=JSON)
