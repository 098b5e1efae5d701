"""The page of labelling, with the style of reports; it inserts texts of users only as text."""

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse
from jinja2 import Environment, FileSystemLoader

from lastword.records import document

ASSETS = Path(__file__).parent / "assets"


def add_labelling_page(app: FastAPI, base: str) -> None:
    """Add the labelling page and its files to an application, at `base`."""
    environment = Environment(
        loader=FileSystemLoader(ASSETS),
        autoescape=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
        trim_blocks=True,
    )
    files = [ASSETS / "label.js", ASSETS / "label.css"]
    files += [document.ASSETS / "page.css", document.ASSETS / "data.js"]
    answers: dict[str, Callable[[], Response]] = {
        f"{base}/static/{file.name}": partial(FileResponse, file) for file in files
    }
    page, palette = environment.get_template("label.html.j2").render(), document.palette()
    answers[f"{base}/"] = partial(HTMLResponse, page)
    answers[f"{base}/static/palette.css"] = partial(Response, palette, media_type="text/css")
    for path, answer in answers.items():
        app.add_api_route(path, _sender(answer), include_in_schema=False)


def _sender(answer: Callable[[], Response]) -> Callable[[], Awaitable[Response]]:
    # FastAPI would run a function that is not async in a thread of its pool.
    async def send() -> Response:
        return answer()

    return send
