"""Refusals as the clients of a path read them: in our form, OpenAI's, Cohere's or TEI's."""

from collections.abc import Callable
from typing import Any

from lastword.files.strict_json import to_json
from lastword.records.decision import SCHEMA
from lastword.service.refusal import Refusal
from lastword.service.schema import problem

# OpenAI's clients know a bad body as 400.
OPENAI_STATUS = {422: 400}
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_TEI_TYPES = {422: "Validation", 429: "Overloaded", 503: "Unhealthy"}


def refused(path: str, refusal: Refusal) -> tuple[int, bytes]:
    """Status and body of a refusal.

    Args:
        path: Of the request, whose clients read it.
        refusal: What is told.
    """
    form = _FORMS.get(path, _ours)
    status = OPENAI_STATUS.get(refusal.status) if form is _openai else None
    return status or refusal.status, to_json(form(refusal)).encode()


def _ours(refusal: Refusal) -> dict[str, Any]:
    return {"schema": SCHEMA} | problem(refusal)


def _openai(refusal: Refusal) -> dict[str, Any]:
    bad = "server_error" if refusal.status >= 500 else "invalid_request_error"
    kind = _OPENAI_TYPES.get(refusal.status, bad)
    told = {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}
    return {"error": told}


def _cohere(refusal: Refusal) -> dict[str, Any]:
    return {"message": str(refusal), "code": refusal.code}


def _tei(refusal: Refusal) -> dict[str, Any]:
    kind = _TEI_TYPES.get(refusal.status, "Backend" if refusal.status >= 500 else "Validation")
    return {"error": str(refusal), "error_type": kind}


_FORMS: dict[str, Callable[[Refusal], dict[str, Any]]] = {
    "/v1/models": _openai,
    "/v1/completions": _openai,
    "/v1/chat/completions": _openai,
    "/v1/rerank": _cohere,
    "/v2/rerank": _cohere,
    "/rerank": _tei,
    "/info": _tei,
    "/health": _tei,
}
