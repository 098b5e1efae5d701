"""`/docs`: the API as Swagger UI shows it, from files that come with `fastapi-offline`.

FastAPI's own page asks another site for its script; this one loads nothing from elsewhere.
"""

from importlib.resources import files

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles

SCRIPT, STYLE, ICON = (
    f"/docs-files/{name}" for name in ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")
)


def add_reference(app: FastAPI) -> None:
    """Let an application answer `/docs`, and the three files that its page is made of.

    Args:
        app: Its OpenAPI schema is what the page shows.
    """

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title=f"{app.title} {app.version}",
            swagger_js_url=SCRIPT.lstrip("/"),
            swagger_css_url=STYLE.lstrip("/"),
            swagger_favicon_url=ICON.lstrip("/"),
        )

    app.mount("/docs-files", StaticFiles(directory=str(files("fastapi_offline") / "static")))
