"""A small page in Gradio, for places that host nothing else: the explorer is the page elsewhere."""

import os
from typing import TYPE_CHECKING

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
import gradio as gr
from plotly.graph_objects import Figure

from tracelm.errors import TraceError
from tracelm.service.examples import examples
from tracelm.view.explanation import explain
from tracelm.view.plot import plot
from tracelm.view.portrait import portrait

if TYPE_CHECKING:
    from tracelm.tracer import Tracer


def page(tracer: "Tracer", title: str = "tracelm") -> gr.Blocks:
    """Prompt and candidates in; the answer in words, and its trajectory, out.

    Args:
        tracer: The model's tracer; one call at a time.
        title: Above the page.
    """

    def answer(prompt: str, lines: str) -> tuple[str, Figure | None]:
        try:
            candidates = [line for line in lines.splitlines() if line.strip()]
            record = tracer.correct(prompt, candidates, read="all").to_record()
        except TraceError as error:
            return str(error), None
        return explain(record, tracer.theta), plot(portrait(record, tracer.theta))

    offered = [
        [example["prompt"], "\n".join(example["candidates"])]
        for example in examples(str(tracer.source["model"]))
    ]
    blocks: gr.Blocks = gr.Blocks(title=title, analytics_enabled=False)
    with blocks:
        gr.Markdown(f"# {title}")
        prompt = gr.Textbox(offered[0][0], label="Prompt", lines=3)
        lines = gr.Textbox(offered[0][1], label="Candidates, one a line", lines=5)
        button = gr.Button("Correct", variant="primary")
        gr.Examples(offered, [prompt, lines])
        told = gr.Textbox(label="Why", lines=5)
        drawn = gr.Plot(label="Across the model's depth")
        gr.on([blocks.load, button.click], answer, [prompt, lines], [told, drawn])
    return blocks
