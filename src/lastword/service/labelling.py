"""The labelling page: a small application for one user, under an address that nobody can guess.

All its routes begin with a random token. `state` gives the progress and the next text. `label`
stores a label (null skips the text), and `undo` removes the last label; both give the new state.
`result` is the page of the verdict.
"""

import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict

from lastword.errors import InputError
from lastword.service.app import add_dialects, lifespan
from lastword.service.application import Application
from lastword.service.call import json_of
from lastword.service.dialect import Dialect, routes
from lastword.service.log import Log
from lastword.service.pages import add_labelling_page
from lastword.service.refusal import Refusal
from lastword.service.settings import Settings
from lastword.tryout.label_job import LabelJob
from lastword.tryout.labelling import Repeated

_BODY_BYTES = 2**14
_END_SECONDS = 10.0  # time for the model's thread to end
_RESULT_POLICY = (  # the page has a stricter one, which allows only its scripts
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: "
    "blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class LabelService(Application):
    """A table that a user labels, with the thread that trains and tests the probe.

    `started` gets the page's address once it can be opened; `path` is the first part of every
    address, and `error` the error that ended the thread.
    """

    error: BaseException | None = None
    _closing = False

    def __init__(self, job: LabelJob, port: int, started: Callable[[str], None]) -> None:
        super().__init__(Settings(port=port, body_bytes=_BODY_BYTES), _Failures())
        self.job, self.path, self._started = job, f"/{secrets.token_urlsafe(16)}", started
        self._thread = threading.Thread(target=self._work, name="lastword-label", daemon=True)

    def announce(self, address: str) -> None:
        """Pass on the page's address, and start the thread."""
        self._started(f"{address}{self.path}/")
        self._thread.start()

    def close(self) -> None:
        """End the thread, unless the model is running."""
        self._closing = True
        self.job.close()
        if self._thread.ident is not None:
            self._thread.join(_END_SECONDS)
        self.ended = not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self.job.run()
        except BaseException as error:  # the command raises it in the main thread
            self.error = error
            if not self._closing:
                signal.raise_signal(signal.SIGTERM)  # `os.kill` would not run handlers on Windows


class _Failures(Log):
    """A log of failures alone."""

    def event(self, name: str, **fields: Any) -> None:
        if name == "failure":
            super().event(name, **fields)


class LabelBody(BaseModel):
    """A label; null skips the row."""

    model_config = ConfigDict(extra="forbid", strict=True)
    row: str
    label: str | None


def create_label_app(service: LabelService) -> FastAPI:
    """Return the application of a labelling page; its `state.service` ends with its lifespan."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.service = service
    router, base, job = routes(), service.path, service.job
    options = [option.text for option in job.question.options]

    @router.get(f"{base}/state")
    async def state() -> Response:
        return json_of(_state(job))

    @router.post(f"{base}/label")
    async def label(body: LabelBody) -> Response:
        if body.label is not None and body.label not in options:
            raise InputError(f"{body.label!r} is not one of {', '.join(options)}")
        with _refusals():
            job.labelling.give(body.row, body.label)
        return json_of(_state(job))

    @router.post(f"{base}/undo")
    async def undo() -> Response:
        with _refusals():
            row = job.labelling.undo()
        return json_of(_state(job) | {"undone": row is not None})

    @router.get(f"{base}/result")
    async def result() -> Response:
        if job.progress.page is None:
            raise Refusal("not_found", "the page of the verdict is not written yet")
        return FileResponse(job.progress.page, headers={"content-security-policy": _RESULT_POLICY})

    add_labelling_page(app, base)
    add_dialects(app, [Dialect(router)])
    return app


def _state(job: LabelJob) -> dict[str, Any]:
    progress, labelling = job.progress, job.labelling
    row = None if progress.ended else labelling.next()
    options = [{"name": o.text, "description": o.description or ""} for o in job.question.options]
    return {
        "instructions": job.question.instructions,
        "options": options,
        "shown": None if row is None else {"row": row, "text": labelling.texts[row]},
        "round": labelling.round,
        "done": len(labelling.done),
        "rows": len(labelling.rows),
        **{name: value for name, value in vars(progress).items() if name != "page"},
        "result": progress.page is not None,
    }


@contextmanager
def _refusals() -> Iterator[None]:
    """Refuse a second label of a row, and one that the disk does not take."""
    try:
        yield
    except Repeated as error:
        raise Refusal("repeated_feedback", str(error)) from error
    except OSError as error:
        what = f"the label is not saved: {error}. Make room on the disk, and label it again"
        raise Refusal("unkept", what) from error
