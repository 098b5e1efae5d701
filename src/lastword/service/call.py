"""Call: one request, as the handlers of all dialects get it."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Annotated, Any

import pydantic_core
from fastapi import Depends, Request, Response

from lastword.decide.batch import Read
from lastword.errors import TraceError
from lastword.service.schema import to_bytes
from lastword.service.service import Service
from lastword.text.items import Item

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

    async def correct(
        self, item: Item, *, full: bool = False, view: bool = False
    ) -> dict[str, Any]:
        """Return the JSON of an item's decision.

        Args:
            item: The item.
            full: True to read every depth and T.
            view: True to add the content that the pages draw.

        Raises:
            TraceError: What the item or the model raised.
        """
        read: Read = "all" if full or view else "decide"
        scope = self.service.decider.scope(read, "all" if view else "base")
        (decision,) = await self.service.correct([(item, scope)], self.client, batch=False)
        if isinstance(decision, TraceError):
            raise decision
        written = self.service.write(decision, item, full=full, request=self.id)
        if view:
            written["view"] = self.service.view(decision, item)
        return written


async def _call(request: Request) -> Call:
    """Return the call of a request; async, because FastAPI runs other functions in a thread."""
    return Call(request, request.app.state.service)


ThisCall = Annotated[Call, Depends(_call)]


def plain_answer(value: dict[str, Any]) -> Response:
    """Return a response in a client's form, in a tenth of the time of FastAPI's."""
    return Response(pydantic_core.to_json(value, inf_nan_mode="null"), media_type=JSON)


def json_of(value: dict[str, Any]) -> Response:
    """Return a response in the service's form."""
    return Response(to_bytes(value), media_type=JSON)
