"""Static pages over the public API: the reference at `/docs`, the explorer at `/` and `/decide`.

They are files, and so are the report's style and drawing, which they share. What they show they ask
of the routes that everybody has, and they set text alone, whatever a model or a reader wrote.
"""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

from lastword.records import document

ASSETS = Path(__file__).parent / "assets"
_LABEL = ("label.html", "label.js", "label.css")
_REFERENCE = {"/docs": "docs.html"}
_EXPLORER = {"/": "explorer.html", "/decide": "decide.html"}
_SHARED = ("page.css", "data.js", "trajectory.js", "portrait.js")  # with the report


def add_pages(app: FastAPI, *, explorer: bool) -> None:
    """Let an application answer with the pages and what they load."""
    files = [p for p in ASSETS.iterdir() if p.suffix != ".html" and p.name not in _LABEL]
    files += [document.ASSETS / name for name in _SHARED]
    paths = {f"/static/{path.name}": path for path in files}
    pages = _REFERENCE | (_EXPLORER if explorer else {})
    paths |= {path: ASSETS / name for path, name in pages.items()}
    _add(app, paths)


def add_labelling_page(app: FastAPI, base: str) -> None:
    """Let an application answer with the labelling page at `base`, and with what it loads."""
    files = [ASSETS / "label.js", ASSETS / "label.css"]
    files += [document.ASSETS / name for name in ("page.css", "data.js")]
    pages = {f"{base}/static/{path.name}": path for path in files}
    _add(app, pages | {f"{base}/": ASSETS / "label.html"}, base)


def _add(app: FastAPI, paths: Mapping[str, Path], base: str = "") -> None:
    for path, file in paths.items():
        app.add_api_route(path, _sender(file), include_in_schema=False)

    @app.get(f"{base}/static/palette.css", include_in_schema=False)
    async def colours() -> Response:
        return Response(document.palette(), media_type="text/css")


def _sender(file: Path) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return FileResponse(file)

    return send
