"""The questions of a file are an MCP tool, over both transports of the SDK's client."""

import asyncio
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
from topics import QUESTION, probe_of

from lastword import Decider, Predicate, Tracer
from lastword.decide.questions_file import write_questions
from lastword.errors import InputError

mcp = pytest.importorskip("mcp")
TEXT = "The invoice is late."
QUESTIONS = {"topic": QUESTION, "angry": Predicate("The writer is angry.")}
COMMAND = ["-m", "lastword", "mcp", "--model", "lastword/demo-organism", "--questions"]


def call_tool(server: Any) -> tuple[Any, Any, Any]:
    """Return the tool of a server, its answer to a text, and its answer to an invalid text."""

    async def call() -> tuple[Any, Any, Any]:
        async with mcp.Client(server) as client:
            (tool,) = (await client.list_tools()).tools
            answer = await client.call_tool(tool.name, {"text": TEXT})
            return tool, answer, await client.call_tool(tool.name, {"text": "a\0b"})

    return asyncio.run(call())


def listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_a_file_of_questions_is_a_tool(tmp_path, transport):
    topic, path = probe_of(Tracer.demo()), tmp_path / "my tickets.yaml"
    topic.write(tmp_path / "topic.probe.safetensors")
    write_questions(path, QUESTIONS, {"topic": "topic.probe.safetensors"})
    arguments = [*COMMAND, str(path)]
    if transport == "stdio":
        command = mcp.StdioServerParameters(command=sys.executable, args=arguments)
        tool, answer, refused = call_tool(command)
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with subprocess.Popen([sys.executable, *arguments, "--port", str(port)]) as process:
            try:
                while not listens(port):
                    assert process.poll() is None
                    time.sleep(0.1)
                tool, answer, refused = call_tool(f"http://127.0.0.1:{port}/mcp")
            finally:
                process.terminate()
    expected = Decider.demo(probes=[topic]).decide(TEXT, QUESTIONS).to_dict()
    assert tool.name == "my_tickets" and "animal, money" in tool.description
    assert list(tool.input_schema["properties"]) == ["text"] and tool.annotations.read_only_hint
    assert not answer.is_error and answer.structured_content["topic"] == expected["topic"]
    assert expected["topic"]["method"] == topic.name and expected["angry"]["method"] == "model"
    yes = expected["angry"]["probability"]
    assert answer.structured_content["angry"]["probability"] == pytest.approx(yes, abs=1e-5)
    assert refused.is_error and "NUL" in refused.content[0].text


def test_two_files_of_one_name_are_refused():
    from lastword.integrations.mcp import mcp_server

    tracer = Decider.demo()
    ready = tracer.prepare(QUESTIONS)
    with pytest.raises(InputError, match="the tool 'a_b': rename"):
        mcp_server(tracer, [("a b", ready), ("a_b", ready)])
