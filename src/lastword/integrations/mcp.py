"""A server of the Model Context Protocol, with a tool for each set of questions."""

import re
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from lastword.decide.decider import Decider
from lastword.decide.questionnaire import Questionnaire
from lastword.errors import InputError, TraceError
from lastword.text.question import Question
from lastword.version import __version__

_SHOWN = 20  # maximum number of options per question in a tool's description
_HINTS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
Text = Annotated[str, Field(description="The text that is decided about.")]


def mcp_server(decider: Decider, sets: Iterable[tuple[str, Questionnaire]]) -> MCPServer[Any]:
    """Return a server with a tool for each set of questions."""
    server: MCPServer[Any] = MCPServer("lastword", version=__version__, log_level="WARNING")
    turns, names = anyio.CapacityLimiter(1), set[str]()
    for name, questionnaire in sets:
        tool = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64]
        if tool in names:
            raise InputError(f"two questions files would become the tool {tool!r}: rename one")
        names.add(tool)
        work = _tool(decider, questionnaire, turns)
        server.add_tool(work, tool, description=described(questionnaire), annotations=_HINTS)
    return server


def described(questionnaire: Questionnaire) -> str:
    """Return the description of a tool for agents."""
    lines = [f"- {name}: {_line(question)}" for name, question in questionnaire.questions.items()]
    more = "`deferred` says that an answer is too unsure to act on."
    return "\n".join(["Answers about a text, each with its probability:", *lines, more])


def _line(question: Question) -> str:
    texts = [option.text for option in question.options]
    rest = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    kind = type(question).__name__.lower()
    return f"{question.instructions} ({kind}: {', '.join(texts[:_SHOWN])}{rest})".lstrip()


def _tool(
    decider: Decider, questionnaire: Questionnaire, turns: anyio.CapacityLimiter
) -> Callable[[str], Coroutine[Any, Any, dict[str, Any]]]:
    async def decide(text: Text) -> dict[str, Any]:
        try:
            answers = await anyio.to_thread.run_sync(
                decider.decide, text, questionnaire, limiter=turns
            )
        except TraceError as error:
            raise ToolError(str(error)) from error
        return answers.to_dict()

    return decide
