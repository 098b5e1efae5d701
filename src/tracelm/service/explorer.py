"""The explorer: one page to ask a model, see why it answers so, and look into a run's records.

Gradio, mounted at `/` behind the service's guard: no upload, no analytics, nothing from outside.
"""

import os
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
import gradio as gr
from plotly.graph_objects import Figure

from tracelm import demo
from tracelm.errors import TraceError
from tracelm.report.figures import rows_of, subject
from tracelm.report.page_data import failed
from tracelm.service.correction import Corrector
from tracelm.text.items import Item
from tracelm.theta import Theta
from tracelm.view.explanation import explain, gate_lines
from tracelm.view.plot import before_and_after, trajectory
from tracelm.view.portrait import Portrait, Record, portrait
from tracelm.view.table import html_table

if TYPE_CHECKING:
    import pandas as pd

View = tuple[str, Figure | None, Figure | None]

_FONTS = ["system-ui", "sans-serif"]
_EXAMPLES = 6
_STYLE = """
.answer h2 { margin: 0 0 .4rem; font-size: 1.15rem }
.answer table { border-collapse: collapse; margin: .6rem 0 }
.answer :is(td, th) { border: 0; padding: .15rem .8rem .15rem 0; vertical-align: top }
.answer :is(td, th) { text-align: left; font-variant-numeric: tabular-nums }
.answer ul { list-style: none; padding: 0; margin: .4rem 0 }
.answer .holds::before { content: "✓ "; color: #00805a }
.answer .fails::before { content: "✗ "; color: #c8321f }
.answer .unread::before { content: "– " }
.answer [role=alert] { color: #c8321f; font-weight: 600 }
"""


def mount(app: FastAPI, correctors: Mapping[str, Corrector], runs: Path | None = None) -> None:
    """Put the page at `/` of a service.

    Args:
        app: What `create_app` made.
        correctors: Models to choose from, by name; the first is chosen.
        runs: Folder of `tracelm eval`, for the second tab.

    Raises:
        RecordError: The folder has no records.
    """
    service = app.state.service
    page = _page(correctors, runs)
    page.queue(max_size=service.settings.queue_items, api_open=False)
    gr.mount_gradio_app(
        app,
        page,
        path="/",
        footer_links=[],
        run_history=False,
        show_error=False,
        max_file_size=1,
        ssr_mode=False,
        enable_monitoring=False,
        mcp_server=False,
        pwa=False,
        theme=gr.themes.Base(font=_FONTS, font_mono=["ui-monospace", "monospace"]),
        css=_STYLE,
    )
    service.traffic.explorer = True


def _page(correctors: Mapping[str, Corrector], runs: Path | None) -> gr.Blocks:
    page = gr.Blocks(title="tracelm explorer", analytics_enabled=False)
    with page:
        gr.Markdown("# tracelm explorer")
        with gr.Tab("Ask"):
            _ask_tab(correctors)
        with gr.Tab("Records"):
            if runs is None:
                gr.Markdown("Start `tracelm explore` with `--runs FOLDER` to look into a run.")
            else:
                _records_tab(_Records(runs))
    return page


def _ask_tab(correctors: Mapping[str, Corrector]) -> None:
    names = list(correctors)
    with gr.Row():
        with gr.Column(scale=2):
            model = gr.Dropdown(names, value=names[0], label="Model", interactive=len(names) > 1)
            prompt = gr.Textbox(label="Prompt", lines=3, elem_id="prompt")
            candidates = gr.Textbox(label="Candidates, one a line", lines=6, elem_id="candidates")
            button = gr.Button("Correct", variant="primary", elem_id="correct")
            examples = _examples()
            chosen = gr.Dropdown(list(examples), value=None, label="Examples of the demo")
        with gr.Column(scale=3):
            view = _view("")
    chosen.select(
        lambda name: examples[name], chosen, [prompt, candidates], api_visibility="private"
    )

    async def show(name: str, prompt: str, lines: str) -> View:
        corrector = correctors[name]
        try:
            item = Item(prompt, tuple(line for line in lines.splitlines() if line.strip()))
            decision = await corrector.result(corrector.start(item, "all"))
        except TraceError as error:
            return _alert(str(error)), None, None
        return view_of(decision.to_record(), corrector.tracer.theta)

    button.click(show, [model, prompt, candidates], view, api_visibility="private")


def _examples() -> dict[str, tuple[str, str]]:
    """A few items of the demo's benchmark, evenly spread: name to prompt and candidates."""
    items = demo.items()
    spread = items[:: max(1, len(items) // _EXAMPLES)][:_EXAMPLES]
    return {str(i.question or i.prompt): (i.prompt, "\n".join(i.candidates)) for i in spread}


def _records_tab(records: "_Records") -> None:
    with gr.Row():
        with gr.Column(scale=2):
            names = list(records.cells)
            cell = gr.Dropdown(names, value=names[0], label="Run", elem_id="cell")
            which = gr.Radio(["changed", "all"], value="all", label="Items")
            item = gr.Dropdown(
                records.items(names[0], "all"), value=None, label="Item", elem_id="item"
            )
        with gr.Column(scale=3):
            view = _view("record-")

    def listed(name: str, kind: str) -> Any:
        return gr.Dropdown(records.items(name, kind), value=None)

    for control in (cell, which):
        control.change(listed, [cell, which], item, api_visibility="private")
    item.change(records.view, [cell, item], view, api_visibility="private")


class _Records:
    """A run's records, cell by cell."""

    def __init__(self, runs: Path) -> None:
        from tracelm.evaluation.settings import read_thetas
        from tracelm.evaluation.store import load_records

        self._thetas = {" on ".join(name): t for name, t in read_thetas(runs).items()}
        names = ["model", "benchmark"]
        self.cells: dict[str, pd.DataFrame] = {
            " on ".join(map(str, name)): cell.reset_index(drop=True)
            for name, cell in load_records(runs).groupby(names, sort=False)
        }

    def items(self, name: str, kind: str) -> list[tuple[str, int]]:
        """Choices of a cell: the item as it reads, and its place."""
        return [
            (f"{row['id']}  {subject(row)}", place)
            for place, row in enumerate(rows_of(self.cells[name]))
            if kind == "all" or (not failed(row) and row["index"] != row["base_index"])
        ]

    def view(self, name: str, place: int | None) -> View:
        """What a record shows."""
        if place is None:
            return "", None, None
        (record,) = rows_of(self.cells[name].iloc[[place]])
        if failed(record):
            return _alert(explain(record)), None, None
        return view_of(record, self._thetas[name])


def _view(prefix: str) -> list[Any]:
    """The three panels of an answer, made where the page stands."""
    return [
        gr.HTML(elem_id=f"{prefix}answer", elem_classes="answer"),
        gr.Plot(label="Trajectory", elem_id=f"{prefix}trajectory"),
        gr.Plot(label="Before and after", elem_id=f"{prefix}bars"),
    ]


def view_of(record: Record, theta: Theta) -> View:
    """A decision or record as the three panels: words with gates, trajectory, bars.

    Args:
        record: A decision's record, or one of `tracelm eval`.
        theta: Constants of the decision.
    """
    seen = portrait(record, theta)
    told = (_heading(seen), f"<p>{escape(explain(record))}</p>", _gates(record), html_table(seen))
    return "".join(told), trajectory(seen), before_and_after(seen)


def _heading(seen: Portrait) -> str:
    before, after = (escape(seen.candidates[i].text) for i in (seen.base_index, seen.index))
    if seen.base_index == seen.index:
        return f"<h2>{after} <small>(unchanged)</small></h2>"
    return f"<h2><s>{before}</s> → {after}</h2>"


def _gates(record: Record) -> str:
    marks = {True: "holds", False: "fails", None: "unread"}
    rows = [f'<li class="{marks[held]}">{escape(line)}</li>' for line, held in gate_lines(record)]
    return f"<ul>{''.join(rows)}</ul>"


def _alert(message: str) -> str:
    return f'<p role="alert">{escape(message)}</p>'
