"""The walk through README that `make fresh` takes: what it runs, leaves out, stops and reports."""

import os
import sys
from pathlib import Path

import pytest
from fresh import LEFT_OUT, Walk
from pages import blocks, parts

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")

# Says where it listens as the service does, answers, and ends with 3 if a variable says so.
SERVICE = f"""#!{sys.executable}
import json, os, signal, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", 0), Handler)
signal.signal(signal.SIGTERM, lambda *_: os._exit(int(os.environ["ENDS"])))
address = f"http://127.0.0.1:{{server.server_port}}"
print(json.dumps({{"event": "started", "address": address}}), file=sys.stderr, flush=True)
server.serve_forever()
"""


@pytest.fixture
def walk(tmp_path: Path) -> Walk:
    """A walk in an empty folder, where no hub can be reached and `lastword` is a stand-in."""
    command = tmp_path / "bin" / "lastword"
    command.parent.mkdir()
    command.write_text(SERVICE)
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    return Walk(tmp_path, os.environ | {"PATH": path, "ENDS": "0"}, lambda name: False)


def page(*commands: str, output: str | None = None, kind: str = "sh") -> str:
    shown = "" if output is None else f"\n```\n{output}\n```\n"
    return "\n".join([f"```{kind}", *commands, "```", shown])


def test_commands_run_as_they_stand_and_what_fails_is_told(walk):
    walk.page(page("echo one > file", "cat file \\", "    file", output="one\none"))
    walk.page(page("import os", "print(sorted(os.listdir()))", kind="python"))
    assert walk.failures == [] and (walk.folder / "file").read_text() == "one\n"
    walk.page(page("echo one", output="two"))
    walk.page(page("false", "echo on > file"))
    something, code = walk.failures
    assert "something else" in something and code == "exit code 1: false"
    assert (walk.folder / "file").read_text() == "on\n"


def test_what_is_left_out_has_a_reason(walk, capsys):
    walk.page(page("make test", "lastword correct --model Qwen/Qwen3-0.6B --prompt x"))
    told = capsys.readouterr().out
    assert "not run, the hub cannot be reached: lastword correct" in told
    assert f"not run, {LEFT_OUT['make ']}: make test" in told and walk.failures == []
    (walk.folder / "mine").mkdir()
    for model in ("lastword/smollm2-135m", "./mine"):
        assert walk.left_out(f"lastword correct --model {model}") is None
    walk.reachable = lambda name: name == "Qwen/Qwen3-0.6B"
    assert walk.left_out("lastword correct --model Qwen/Qwen3-0.6B") is None


def test_a_service_answers_while_the_page_goes_on_and_ends_with_it(walk, capsys):
    walk.page(page("lastword serve --port 0  # here", "echo on > file"))
    assert capsys.readouterr().out.count("answers 200") == 2
    assert walk.failures == [] and walk.server is None and (walk.folder / "file").exists()
    walk.environment = {**walk.environment, "ENDS": "3"}
    walk.page(page("lastword explore"))
    assert "ended with 3" in walk.failures[0]


def test_readme_has_what_the_walk_needs():
    typed = [part for block in blocks(README) for part in parts(block)]
    assert typed[0].startswith("pip install '.[")
    assert any(part.startswith("lastword serve") for part in typed)
