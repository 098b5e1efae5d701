"""`lastword mcp`: offers questions as tools to an agent."""

from pathlib import Path
from typing import Annotated

import typer

from lastword.cli import options as opt
from lastword.cli.model import load_decider, load_options


def mcp(
    *,
    model: opt.Model,
    questions: Annotated[
        list[Path],
        typer.Option(help="Questions file; it becomes a tool with the file's name. Repeatable."),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Streamable HTTP on 127.0.0.1:PORT/mcp. Default: standard input and output.",
        ),
    ] = None,
    answers: opt.AnswerOptions,
    loading: opt.Loading,
) -> None:
    """Give an agent your questions as tools, with the Model Context Protocol."""
    from lastword.decide.questions_file import read_questions
    from lastword.integrations.mcp import mcp_server

    options = load_options(model, loading, answers, questions)
    sets = [read_questions(path) for path in questions]
    decider = load_decider(options)
    names = (path.stem for path in questions)
    server = mcp_server(decider, zip(names, map(decider.prepare, sets), strict=True))
    if port is None:
        server.run()
    else:
        server.run("streamable-http", port=port)
