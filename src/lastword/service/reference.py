"""`/docs`: every route of the API, with its body and its answer, to be tried on the page.

Made from the OpenAPI schema, in the report's design; it loads nothing and asks nobody else.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from lastword.report.document import document

_ASSETS = Path(__file__).parent / "assets"

Schema = Mapping[str, Any]


def add_reference(app: FastAPI) -> None:
    """Let an application answer `/docs`.

    Args:
        app: Its OpenAPI schema is what the page shows.
    """

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        schema = app.openapi()
        page = document(
            "reference.html.j2",
            ("data.js", "reference.js"),
            {},
            assets=_ASSETS,
            title=f"{app.title} {app.version}",
            told=app.description,
            routes=routes(schema),
        )
        return HTMLResponse(page)


def routes(schema: Schema) -> list[dict[str, Any]]:
    """What the page shows of each route.

    Args:
        schema: OpenAPI, as FastAPI writes it.
    """
    return [
        _route(path, method, operation, schema)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]


def _route(path: str, method: str, operation: Schema, schema: Schema) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    kind = next(iter(content), "")
    body = _resolved(content[kind]["schema"] if kind else {}, schema)
    answer = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    result = _resolved(answer.get("schema", {}), schema)
    return {
        "path": path,
        "method": method.upper(),
        "name": operation["operationId"],
        "told": operation.get("description", "").split("\n\n"),
        "kind": kind,
        "kinds": list(content),
        "example": json.dumps(_example(body, schema), indent=2, ensure_ascii=False),
        "taken": _fields(body),
        "given": _fields(result),
        "answers": {
            status: answer.get("description", "")
            for status, answer in operation["responses"].items()
        },
    }


def _resolved(part: Schema, schema: Schema) -> Schema:
    """What a reference stands for; anything else as it is."""
    if "$ref" not in part:
        return part
    target: Schema = schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]
    return target


def _example(part: Schema, schema: Schema) -> Any:
    """An example of a body: its own, or one of what it holds."""
    part = _resolved(part, schema)
    for union in (part.get("oneOf"), part.get("anyOf")):
        if union:
            return _example(union[0], schema)
    if part.get("examples"):
        return part["examples"][0]
    if part.get("type") == "array":
        return [_example(part["items"], schema)]
    properties = part.get("properties", {})
    return {name: _example(properties[name], schema) for name in part.get("required", ())}


def _fields(part: Schema) -> list[dict[str, Any]]:
    required = part.get("required", ())
    return [
        {
            "name": name,
            "kind": _kind(inner),
            "required": name in required,
            "told": inner.get("description", ""),
        }
        for name, inner in part.get("properties", {}).items()
    ]


def _kind(part: Schema) -> str:
    """`list of string`, `integer or null`: what a value is, in words."""
    if "$ref" in part:
        return str(part["$ref"].rpartition("/")[2])
    for several in ("anyOf", "oneOf"):
        if several in part:
            return " or ".join(dict.fromkeys(_kind(one) for one in part[several]))
    if "enum" in part:
        return " or ".join(map(str, part["enum"]))
    if part.get("type") == "array":
        return f"list of {_kind(part.get('items', {}))}"
    return str(part.get("const", part.get("type", "any value")))
