"""Call: one request, as the handlers of all dialects get it."""

from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic_core
from fastapi import Depends, Request, Response

from lastword.decide.batch import Read, Scope
from lastword.records.decision import Decision
from lastword.service.passes import ModelOrder
from lastword.service.refusal import Refusal
from lastword.service.schema import to_bytes
from lastword.service.service import Service, cancel
from lastword.text.items import Item
from lastword.text.tokens import EncodedItem

JSON = "application/json"


@dataclass(frozen=True)
class Call:
    """One request.

    Attributes:
        request: The HTTP request.
        service: The service that received it.
    """

    request: Request
    service: Service

    @property
    def id(self) -> str:
        """The request's id, which the guard sets."""
        return str(self.request.scope["state"]["request"])

    @property
    def client(self) -> Hashable:
        """The client: the connection, or the client that the proxy names (`Guard`)."""
        return self.request.client

    async def answer(
        self, item: Item, *, full: bool = False, view: bool = False, correct: bool = True
    ) -> tuple[dict[str, Any], EncodedItem]:
        """Return the JSON of an item's decision, and the item's tokens.

        Args:
            item: The item.
            full: True to read every depth and T.
            view: True to add the content that the pages draw.
            correct: False to give the model's answer, unless the service has a correction or a
                certificate.

        Raises:
            Refusal: The deadline passed, or the service is stopping.
            TraceError: What the item or the model raised.
        """
        corrects = correct or self.service.decider.method != "base"
        read: Read = "all" if full or view else "decide" if corrects else "base"
        scope = Scope(read, "all" if view else "base")
        (order,) = await self.service.start([(item, scope)], self.client)
        try:
            decision: Decision = await self.service.result(order)
        finally:
            cancel([order])
        assert isinstance(order, ModelOrder) and order.encoded is not None
        decision = decision if corrects else decision.as_base()
        written = self.service.write(decision, item, full=full, request=self.id)
        if view:
            written["view"] = self.service.view(decision, item)
        return written, order.encoded


async def _call(request: Request) -> Call:
    """Return the call of a request; async, because FastAPI runs other functions in a thread."""
    return Call(request, request.app.state.service)


ThisCall = Annotated[Call, Depends(_call)]


def kind_of(request: Request) -> str:
    """Return the media type of a body, from its `content-type`."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def takes(*kinds: str) -> Callable[[Request], Awaitable[None]]:
    """Return a dependency that refuses bodies of other media types."""

    async def check(request: Request) -> None:
        if (kind := kind_of(request)) not in kinds:
            need = f"expected a body with the header `content-type: {' or '.join(kinds)}`"
            raise Refusal("unsupported_media_type", f"{need}, not {kind or 'none'!r:.80}")

    return check


def plain_answer(value: dict[str, Any]) -> Response:
    """Return a response in a client's form, in a tenth of the time of FastAPI's."""
    return Response(pydantic_core.to_json(value, inf_nan_mode="null"), media_type=JSON)


def json_of(value: dict[str, Any]) -> Response:
    """Return a response in the service's form."""
    return Response(to_bytes(value), media_type=JSON)
