"""Static pages over the public API: the reference at `/docs`, the explorer at `/` and `/decide`.

They are files, and so are the report's style and drawing, which they share. What they show they ask
of the routes that everybody has, and they set text alone, whatever a model or a reader wrote.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

from lastword.records import document

ASSETS = Path(__file__).parent / "assets"
_REFERENCE = {"/docs": "docs.html"}
_EXPLORER = {"/": "explorer.html", "/decide": "decide.html"}
_SHARED = ("page.css", "data.js", "trajectory.js", "portrait.js")  # with the report


def add_pages(app: FastAPI, *, explorer: bool) -> None:
    """Let an application answer with the pages and what they load."""
    files = [path for path in ASSETS.iterdir() if path.suffix != ".html"]
    files += [document.ASSETS / name for name in _SHARED]
    paths = {f"/static/{path.name}": path for path in files}
    pages = _REFERENCE | (_EXPLORER if explorer else {})
    paths |= {path: ASSETS / name for path, name in pages.items()}
    for path, file in paths.items():
        app.add_api_route(path, _sender(file), include_in_schema=False)

    @app.get("/static/palette.css", include_in_schema=False)
    async def colours() -> Response:
        return Response(document.palette(), media_type="text/css")


def _sender(file: Path) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return FileResponse(file)

    return send
