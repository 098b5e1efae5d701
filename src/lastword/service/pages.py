"""Pages: the reference at `/docs`, and that of labelling.

They share one template, and the style of reports. They get their content from the public routes,
and insert texts of models and users only as text.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader

from lastword.records import document

ASSETS = Path(__file__).parent / "assets"
_LABEL = ("label.js", "label.css")
_SHARED = ("page.css", "data.js")  # with the report


def add_reference(app: FastAPI) -> None:
    """Add the reference and its files to an application."""
    files = [p for p in ASSETS.iterdir() if p.suffix != ".j2" and p.name not in _LABEL]
    files += [document.ASSETS / name for name in _SHARED]
    _add(app, {"/docs": "docs"}, files)


def add_labelling_page(app: FastAPI, base: str) -> None:
    """Add the labelling page and its files to an application, at `base`."""
    files = [*(ASSETS / name for name in _LABEL), *(document.ASSETS / n for n in _SHARED)]
    _add(app, {f"{base}/": "label"}, files, base)


def _add(app: FastAPI, pages: Mapping[str, str], files: Iterable[Path], base: str = "") -> None:
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
    )
    answers: dict[str, Callable[[], Response]] = {
        path: partial(HTMLResponse, environment.get_template(f"{name}.html.j2").render())
        for path, name in pages.items()
    }
    answers |= {f"{base}/static/{file.name}": partial(FileResponse, file) for file in files}
    answers[f"{base}/static/palette.css"] = partial(
        Response, document.palette(), media_type="text/css"
    )
    for path, answer in answers.items():
        app.add_api_route(path, _sender(answer), include_in_schema=False)


def _sender(answer: Callable[[], Response]) -> Callable[[], Awaitable[Response]]:
    # FastAPI would run a function that is not async in a thread of its pool.
    async def send() -> Response:
        return answer()

    return send
