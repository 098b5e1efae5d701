"""The explorer: a page to ask a model, see why it answers so, and look into a run's records.

The report's design and drawing, served at `/` behind the service's guard, and at `/decide` a page
for questions about a text; both ask the routes here and nothing else, and set text alone, whatever
a model or a reader wrote.
"""

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from lastword.errors import InputError
from lastword.records.record import Record
from lastword.report.document import compress, document
from lastword.report.page_data import item as item_view
from lastword.report.page_data import text
from lastword.service.call import JSON, json_of, takes
from lastword.service.correction import LONG, Corrector
from lastword.service.deciding import refused
from lastword.service.explorer.deciding import (
    EXAMPLES,
    DecideBody,
    StoryBody,
    decided,
    items_of,
)
from lastword.service.explorer.examples import examples
from lastword.service.explorer.explained import explained
from lastword.service.explorer.standing import standing
from lastword.service.refusal import Refusal
from lastword.service.schema import Text
from lastword.text.items import Item

if TYPE_CHECKING:
    from lastword.files.folder import Folder
    from lastword.service.explorer.records import Records

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("data.js", "trajectory.js", "portrait.js", "items.js", "call.js", "explorer.js")
_DECIDE_SCRIPTS = ("data.js", "trajectory.js", "portrait.js", "call.js", "decide.js")
_KEPT = 64  # answers, so that a threshold is moved without asking the model again

Thresholds = dict[str, float]


class AskBody(BaseModel):
    """What the page asks: an item, and thresholds that are moved."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: Text
    prompt: Text
    candidates: list[Text] = Field(min_length=1, fail_fast=True)
    truthful: list[bool] | None = None
    blind_prompt: Text | None = None
    thresholds: Thresholds = {}


class RecordBody(BaseModel):
    """Which record the page shows, and thresholds that are moved."""

    model_config = ConfigDict(strict=True, extra="forbid")

    cell: int = Field(ge=0)
    item: int = Field(ge=0)
    thresholds: Thresholds = {}


def mount(app: FastAPI, correctors: Mapping[str, Corrector], runs: "Folder | None" = None) -> None:
    """Put the page at `/` of a service.

    Args:
        app: What `create_app` made.
        correctors: Models to choose from, by name; the first is chosen.
        runs: Folder of `lastword eval`, for the records.

    Raises:
        RecordError: The folder has no records.
    """
    records = None if runs is None else _read(runs)
    _add_page(app, correctors, records)
    _add_answers(app, _Answers(correctors))
    _add_decisions(app, correctors)
    if records is not None:
        _add_records(app, records)
    app.state.service.paths.add_methods(app)


def _read(runs: "Folder") -> "Records":
    # Here, for it brings pandas, which a page without records does without.
    from lastword.service.explorer.records import Records

    return Records(runs)


def _add_page(app: FastAPI, correctors: Mapping[str, Corrector], records: "Records | None") -> None:
    start = {name: examples(str(c.tracer.source["model"])) for name, c in correctors.items()}
    blocks = {"examples": compress(start)}
    if records is not None:
        blocks["records"] = compress(records.index)
    page = document(
        "explorer.html.j2",
        _SCRIPTS,
        blocks,
        assets=_ASSETS,
        title="lastword explorer",
        models=list(correctors),
        records=records is not None,
    )

    @app.get("/", include_in_schema=False)
    async def explorer() -> Response:
        return HTMLResponse(page)

    @app.get("/explorer/models", include_in_schema=False)
    async def models() -> Response:
        standings = [standing(name, corrector) for name, corrector in correctors.items()]
        return json_of({"models": standings})


def _add_answers(app: FastAPI, answers: "_Answers") -> None:
    @app.post("/explorer/answer", dependencies=[Depends(takes(JSON))], include_in_schema=False)
    async def answer(body: AskBody, request: Request) -> Response:
        corrector, record = await answers.of(body, request.client)
        return json_of(explained(record, corrector.tracer.theta, body.thresholds))


def _add_records(app: FastAPI, records: "Records") -> None:
    @app.post("/explorer/record", dependencies=[Depends(takes(JSON))], include_in_schema=False)
    def record(body: RecordBody) -> Response:
        return json_of(records.view(body.cell, body.item, body.thresholds))


def _add_decisions(app: FastAPI, correctors: Mapping[str, Corrector]) -> None:
    """The page Decide, and the two routes that it asks."""
    page = document(
        "decide.html.j2",
        _DECIDE_SCRIPTS,
        {"examples": compress(EXAMPLES)},
        assets=_ASSETS,
        title="lastword decide",
        models=list(correctors),
    )

    async def items(request: Request, corrector: Corrector, body: DecideBody) -> list[Item]:
        try:
            made = await corrector.read(request.client, LONG + 1, lambda: items_of(corrector, body))
        except InputError as error:
            raise refused(error) from error
        return made

    @app.get("/decide", include_in_schema=False)
    async def decide_page() -> Response:
        return HTMLResponse(page)

    @app.post("/explorer/decide", dependencies=[Depends(takes(JSON))], include_in_schema=False)
    async def decide(body: DecideBody, request: Request) -> Response:
        corrector, service = _named(correctors, body.model), request.app.state.service
        answers = await decided(
            corrector, body, await items(request, corrector, body), request.client
        )
        served = corrector.name if corrector is service.corrector else None
        token = service.settings.token is not None
        return json_of({"answers": answers, "served": served, "token": token})

    @app.post("/explorer/story", dependencies=[Depends(takes(JSON))], include_in_schema=False)
    async def story(body: StoryBody, request: Request) -> Response:
        corrector = _named(correctors, body.model)
        if body.place >= len(body.questions):
            raise Refusal("not_found", f"there is no question {body.place + 1}")
        item = (await items(request, corrector, body))[body.place]
        record = await _record(corrector, item, request.client, bounded=True)
        return json_of({"text": text(record), "item": item_view(record, corrector.tracer.theta)})


def _named(correctors: Mapping[str, Corrector], name: str) -> Corrector:
    """Who answers by a name.

    Raises:
        Refusal: Nobody does.
    """
    if name not in correctors:
        names = ", ".join(correctors)
        raise Refusal("not_found", f"no model of this name is served here; there is {names}")
    return correctors[name]


class _Answers:
    """Answered items, the latest of them kept."""

    def __init__(self, correctors: Mapping[str, Corrector]) -> None:
        self._correctors = correctors
        self._kept: OrderedDict[str, Record] = OrderedDict()

    async def of(self, body: AskBody, client: Hashable) -> tuple[Corrector, Record]:
        """Who answers, and the answer's record; from memory where the same was asked before.

        Raises:
            Refusal: No such model, or as `Corrector`.
            TraceError: What the item or the model raised.
        """
        corrector = _named(self._correctors, body.model)
        key = body.model_dump_json(exclude={"thresholds"})
        record = self._kept.pop(key, None) or await _record(corrector, _item(body), client)
        self._kept[key] = record
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return corrector, record


def _item(body: AskBody) -> Item:
    truthful = None if body.truthful is None else tuple(body.truthful)
    candidates = tuple(body.candidates)
    return Item(body.prompt, candidates, truthful=truthful, blind_prompt=body.blind_prompt)


async def _record(
    corrector: Corrector, item: Item, client: Hashable, *, bounded: bool = False
) -> Record:
    """The whole trajectory of an item, and of the same candidates without the question.

    Args:
        corrector: Who answers.
        item: What is asked.
        client: Whose turn it takes.
        bounded: Whether its size was checked.
    """
    items = [item]
    if item.blind_prompt is not None:
        items.append(replace(item, prompt=item.blind_prompt))
    (decision, _), *without = await corrector.decide(items, client, "all", bounded=bounded)
    whole = without[0][0].trajectory if without else None
    answer = replace(decision, truthful=item.truthful, blind_trajectory=whole)
    return Record(
        prompt=item.prompt, candidates=item.candidates, truthful=item.truthful, answer=answer
    )
