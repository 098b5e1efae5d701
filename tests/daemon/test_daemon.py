"""A command in the warm process does what it does in one of its own."""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from forked import Forks

from lastword.daemon import client, server, warm
from lastword.model.options import LoadOptions

CORRECT = ["correct", "--model", "lastword/demo-organism"]
ITEM = ["--prompt", "Which goods come from Baevwick?", "--candidate", "green wool combs"]
ITEM += ["--candidate", "clay lamps"]


@dataclass(frozen=True)
class Warm:
    """One warm process of the tests' own, and commands handed to it."""

    variables: dict[str, str]

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "lastword", *arguments]
        return subprocess.Popen(
            command,
            env=self.variables,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            preexec_fn=heed_interrupts,
        )

    def run(self, *arguments: str, text: str = "") -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(text, timeout=120)
        return process.returncode, out, err

    def pid(self) -> int:
        """The number of the process that listens."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(client.address()))
            peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", peer)[0])


def heed_interrupts() -> None:
    """As a terminal's commands do; those of a suite in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
        patch.setenv("LASTWORD_DAEMON", "auto")
        patch.setenv("PYTHONUNBUFFERED", "1")
        one = Warm(dict(os.environ))
        assert one.run(*CORRECT, *ITEM)[0] == 0
        yield one
        os.kill(one.pid(), signal.SIGKILL)


def test_a_command_prints_and_ends_as_in_a_process_of_its_own(process: Warm, forks: Forks) -> None:
    for arguments in (
        [*CORRECT, *ITEM],
        [*CORRECT, *ITEM, "--json"],
        ["correct", "--model", "no/such-folder", "--prompt", "x", "--candidate", "y"],
        [*CORRECT, "--prompt", "x"],
    ):
        alone = forks.run(
            "-m", "lastword", *arguments, env=dict(os.environ) | {"LASTWORD_DAEMON": "off"}
        )
        assert process.run(*arguments) == (alone.returncode, alone.stdout, alone.stderr)


def test_commands_meet_one_process_that_keeps_the_model(process: Warm) -> None:
    pid, spent = process.pid(), seconds(process.pid())
    for _ in range(3):
        assert process.run(*CORRECT, *ITEM)[0] == 0
    assert process.pid() == pid
    assert seconds(pid) - spent < 3  # of a processor; loading anew takes more than that for one


def seconds(pid: int) -> float:
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(own[11]) + int(own[12])) / os.sysconf("SC_CLK_TCK")


def test_a_command_has_the_clients_folder_and_standard_input(
    process: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = '{"prompt": "Which goods come from Baevwick?", "candidates": ["clay lamps", "hay"]}\n'
    code, out, err = process.run(*CORRECT, "--input", "-", "--output", "own.jsonl", text=line)
    assert (code, out) == (0, "")
    assert "wrote own.jsonl" in err
    assert (tmp_path / "own.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_client_ends_its_command(process: Warm, number: int) -> None:
    pid = process.pid()
    with process.start(*CORRECT, "--input", "-") as waiting:
        wait_for(lambda: busy(process))
        waiting.send_signal(number)
        try:
            assert waiting.wait(timeout=60) != 0
        finally:
            waiting.kill()
    wait_for(lambda: not busy(process))
    assert process.run(*CORRECT, *ITEM)[0] == 0
    assert process.pid() == pid


def busy(process: Warm) -> bool:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(client.address()))
        line.settimeout(0.2)
        try:
            return line.recv(1) != b"+"
        except TimeoutError:
            return True


def wait_for(condition: Callable[[], bool]) -> None:
    latest = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.02)


def test_a_busy_process_leaves_other_commands_to_themselves(process: Warm) -> None:
    with process.start(*CORRECT, "--input", "-") as waiting:
        wait_for(lambda: busy(process))
        assert client.hand_over([*CORRECT, *ITEM]) is None
        waiting.kill()
    wait_for(lambda: not busy(process))


def test_only_short_commands_are_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_DAEMON", "auto")
    assert client.wanted(CORRECT)
    assert not client.wanted(["eval"])
    assert not client.wanted([*CORRECT, "--engine", "vllm"])
    monkeypatch.setenv("LASTWORD_DAEMON", "always")
    with pytest.raises(SystemExit, match="LASTWORD_DAEMON is auto or off, not always"):
        client.wanted(CORRECT)
    monkeypatch.delenv("LASTWORD_DAEMON")
    assert not client.wanted(CORRECT)


def test_other_variables_and_other_code_are_another_address(
    process: Warm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = client.address()
    monkeypatch.setenv("SOMETHING_ELSE", "1")
    assert client.address() == own
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert client.address() != own
    monkeypatch.delenv("HF_HUB_OFFLINE")
    module = tmp_path / "lastword" / "daemon" / "client.py"
    module.parent.mkdir(parents=True)
    module.touch()
    monkeypatch.setattr(client, "__file__", str(module))
    assert client.address() != own


def test_a_folder_that_others_may_enter_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / f"lastword-{os.getuid()}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    with pytest.raises(PermissionError, match="not this user's alone"):
        client.address()
    assert client.hand_over([*CORRECT, *ITEM]) is None


def test_a_changed_file_of_the_model_is_loaded_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "_shelf", warm.Shelf())
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    options = LoadOptions(tmp_path)

    def open_(own: LoadOptions) -> Any:
        return object()

    first = warm.opened(options, open_)
    assert warm.opened(options, open_) is first
    assert warm.opened(LoadOptions(tmp_path, prefix_cache=0), open_) is not first
    second = warm.opened(options, open_)
    weights.write_bytes(b"three")
    assert warm.opened(options, open_) is not second
    warm.drop()
    assert warm.opened(options, open_) is not second


def test_a_process_that_is_no_warm_one_keeps_nothing(tmp_path: Path) -> None:
    def open_(own: LoadOptions) -> Any:
        return object()

    options = LoadOptions(tmp_path)
    assert warm.opened(options, open_) is not warm.opened(options, open_)


def test_it_ends_itself_when_nothing_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(server, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(warm, "_shelf", None)
    server.serve(lambda: pytest.fail("nothing came"))
    assert not client.address().exists()
