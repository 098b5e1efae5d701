"""What every route shares: how a body is admitted, its client watched, its answer told."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import Request, Response

from lastword.service.batch import JSON, kind_of
from lastword.service.refusal import Code, Refusal
from lastword.service.schema import ErrorAnswer, to_bytes

# What a body may meet, and what a request to the model may, beside an answer.
BODY: tuple[Code, ...] = ("invalid_body", "body_too_large", "unsupported_media_type")
MODEL: tuple[Code, ...] = (*BODY, "queue_full", "model", "deadline")


def answers(
    model: Any, *codes: Code, error: type = ErrorAnswer, shift: Mapping[int, int] | None = None
) -> dict[int | str, dict[str, Any]]:
    """The answers of a route for OpenAPI: its own, and what every route may say.

    Args:
        model: Of its own answer; None where that is described otherwise.
        codes: What it may refuse, beside what every route may.
        error: Model of its refusals.
        shift: Statuses that its clients know by another number.
    """
    told: dict[int | str, dict[str, Any]] = {} if model is None else {200: {"model": model}}
    every: tuple[Code, ...] = ("unauthorised", "forbidden", "internal", *codes)
    for code in every:
        status = Refusal(code, "").status
        status = (shift or {}).get(status, status)
        told[status] = {"model": error, "description": code.replace("_", " ")}
    return told


async def takes_json(request: Request) -> None:
    """Refuse a body that does not say it is JSON.

    Raises:
        Refusal: It does not.
    """
    kind_of(request, JSON)


def json_of(value: dict[str, Any]) -> Response:
    """An answer of the service's own form."""
    return Response(to_bytes(value), media_type=JSON)


def id_of(request: Request) -> str:
    """The name that the guard gave a request."""
    return str(request.scope["state"]["request"])


def leaving(request: Request) -> Callable[[], Awaitable[None]]:
    """What returns when the client has left."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    return left
