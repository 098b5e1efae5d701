"""`lastword mcp`: questions as tools of an agent."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lastword.cli.model import Model, load_decider


def mcp(
    model: Model,
    *,
    questions: Annotated[
        list[Path], typer.Option(help="File of questions, which is a tool by its name; repeatable.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Streamable HTTP on 127.0.0.1:PORT/mcp; stdio if left out."
        ),
    ] = None,
) -> None:
    """Give an agent your questions as tools, by the Model Context Protocol."""
    from lastword.decide.file import named_probes, read_questions
    from lastword.integrations.mcp import mcp_server

    sets = [read_questions(path) for path in questions]
    probes = [probe for path in questions for probe in named_probes(path)]
    decider = load_decider(replace(model, probes=(*model.probes, *probes)))
    names = (path.stem for path in questions)
    server = mcp_server(decider, zip(names, map(decider.prepare, sets), strict=True))
    if port is None:
        server.run()
    else:
        server.run("streamable-http", port=port)
