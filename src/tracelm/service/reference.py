"""`/docs`: the API on one plain page, made from its OpenAPI schema; nothing is loaded for it."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1f2933;background:#fff}code,pre{font:14px/1.45 ui-monospace,monospace}"
    "pre{background:#f4f2ec;padding:.8rem;overflow:auto}table{border-collapse:collapse}"
    "td,th{border-bottom:1px solid #d5d3cc;padding:.3rem .8rem .3rem 0;text-align:left;"
    "vertical-align:top}h2{margin-top:2.5rem}"
)


def page(schema: Mapping[str, Any]) -> str:
    """The whole page.

    Args:
        schema: The application's OpenAPI schema.
    """
    info = schema["info"]
    body = "".join(_routes(schema)) + "".join(_forms(schema))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} {escape(info['version'])}</title>"
        f"<style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f'<p>{escape(info["description"])} The schema: <a href="openapi.json">openapi.json</a>.</p>'
        f"{body}</body></html>\n"
    )


def _routes(schema: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            told = operation.get("description") or operation.get("summary", "")
            yield f"<p>{escape(told)}</p>"
            content = operation.get("requestBody", {}).get("content", {})
            yield from (_example(schema, path, name, form) for name, form in content.items())
            rows = "".join(
                f"<tr><td>{escape(status)}</td><td>{escape(answer.get('description', ''))}</td>"
                f"<td>{_link(answer)}</td></tr>"
                for status, answer in operation["responses"].items()
            )
            yield f"<table><tr><th>status</th><th>when</th><th>form</th></tr>{rows}</table>"


def _example(schema: Mapping[str, Any], path: str, kind: str, form: Mapping[str, Any]) -> str:
    example = _value(schema, form["schema"])
    if example is None:
        return f"<p>Also as <code>{escape(kind)}</code>.</p>"
    command = (
        f"curl -s localhost:8000{path} -H 'content-type: {kind}' \\\n  -d '{json.dumps(example)}'"
    )
    return f"<pre>{escape(command)}</pre>"


def _value(schema: Mapping[str, Any], form: Mapping[str, Any]) -> Any:
    """An example of a form: its own, or one put together from its properties."""
    form = _resolved(schema, form)
    if "examples" in form:
        return form["examples"][0]
    if form.get("type") == "array":
        return [_value(schema, form["items"])]
    if form.get("type") == "object":
        return {n: _value(schema, p) for n, p in form["properties"].items()}
    return None


def _resolved(schema: Mapping[str, Any], form: Mapping[str, Any]) -> Mapping[str, Any]:
    if "$ref" not in form:
        return form
    resolved: Mapping[str, Any] = schema["components"]["schemas"][form["$ref"].split("/")[-1]]
    return resolved


def _link(answer: Mapping[str, Any]) -> str:
    links = []
    for kind, content in answer.get("content", {}).items():
        name = content.get("schema", {}).get("$ref", "").split("/")[-1]
        links.append(f'<a href="#{escape(name)}">{escape(name)}</a>' if name else escape(kind))
    return ", ".join(links)


def _forms(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, form in schema["components"]["schemas"].items():
        yield f'<h2 id="{escape(name)}">{escape(name)}</h2>'
        yield f"<p>{escape(form.get('description', ''))}</p>"
        needed = form.get("required", [])
        rows = "".join(
            f"<tr><td><code>{escape(key)}</code></td><td>{escape(_type(value))}</td>"
            f"<td>{'required' if key in needed else ''}</td>"
            f"<td>{escape(value.get('description', ''))}</td></tr>"
            for key, value in form.get("properties", {}).items()
        )
        yield f"<table><tr><th>key</th><th>type</th><th></th><th></th></tr>{rows}</table>"


def _type(form: Mapping[str, Any]) -> str:
    if "$ref" in form:
        return str(form["$ref"].split("/")[-1])
    if "enum" in form:
        return " | ".join(json.dumps(value) for value in form["enum"])
    if "anyOf" in form:
        return " | ".join(_type(option) for option in form["anyOf"])
    if form.get("type") == "array":
        return f"list of {_type(form.get('items', {}))}"
    if "additionalProperties" in form and isinstance(form["additionalProperties"], dict):
        return f"map to {_type(form['additionalProperties'])}"
    return str(form.get("type", form.get("const", "any")))
