"""Requests and labels for a service with a certificate."""

from typing import Any

import httpx
from served import Running

from lastword import Item
from lastword.lab.demo import items

ITEMS = [item for item in items() if len(item.candidates) > 2][:120]


def ask(service: Running, item: Item, **more: Any) -> dict[str, Any]:
    body = {"prompt": item.prompt, "candidates": list(item.candidates)} | more
    answer: dict[str, Any] = service.client.post("/v1/correct", json=body).json()
    return answer


def label(service: Running, answer: dict[str, Any], right: Any, **more: Any) -> httpx.Response:
    body = {"id": answer["feedback_id"], "right": right} | more
    return service.client.post("/v1/feedback", json=body)
