"""A stranger's first hour: an empty environment, README from top to bottom, then the quick tests.

`make fresh` runs it, by any Python with nothing installed. Packages are the newest that there are;
everything is written under `build/`, and stays there to be looked at.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pages import blocks, parts

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PLACE = BUILD / "fresh"
LONGEST_SECONDS = 3600
READY_SECONDS = 300
SERVERS = ("lastword serve", "lastword explore")

# Commands of README that are not run, by how they begin, and why.
LEFT_OUT = {
    "git clone": "this is a checkout",
    "make ": "CI runs it, in an environment of exact pins",
}
# What pip says of a file that it needs, whether it fetches it or has it.
_FETCHED = re.compile(r"(?:Downloading|Using cached) (\S+) \(([\d.]+) ([kMG]B)\)")
_UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
_MODEL = re.compile(r"--model[ =](\S+)")


@dataclass
class Walk:
    """README, typed in by somebody who has nothing.

    Attributes:
        folder: The checkout that it is typed in.
        environment: Variables of the shell.
        reachable: Whether a model of the hub can be had here.
        failures: What did not end as README says.
        server: The service that runs, and the file of its log.
    """

    folder: Path
    environment: Mapping[str, str]
    reachable: Callable[[str], bool]
    failures: list[str] = field(default_factory=list)
    server: tuple["subprocess.Popen[str]", Path] | None = None

    def page(self, text: str) -> None:
        """Type in all that a page says, and hold the last command of a block to its output."""
        for block in blocks(text):
            printed = None
            for part in parts(block):
                if reason := self.left_out(part):
                    say(f"not run, {reason}: {part.splitlines()[0]}")
                elif part.startswith(SERVERS):
                    self.serve(part)
                else:
                    printed = self.run(part, python=block.kind == "python")
            if block.output and printed is not None and block.output.split() != printed.split():
                self.fail(f"prints something else than README shows: {block.text.strip()}")
        self.stop()

    def left_out(self, part: str) -> str | None:
        """Why a command is not run; None where it is."""
        for start, reason in LEFT_OUT.items():
            if part.startswith(start):
                return reason
        for name in _MODEL.findall(part):
            carried = name.startswith("lastword/") or (self.folder / name).expanduser().exists()
            if not carried and not self.reachable(name):
                return "the hub cannot be reached"
        return None

    def run(self, part: str, *, python: bool = False) -> str:
        """What a command, or a program, prints; shown as it comes."""
        say(f"$ {part}")
        command = ["python", "-c", part] if python else ["sh", "-c", part]
        start, lines = time.monotonic(), []
        with self._start(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                print(line, end="", flush=True)
        say(f"[{time.monotonic() - start:.0f} s{_fetched(lines)}]")
        if process.returncode:
            self.fail(f"exit code {process.returncode}: {part}")
        return "".join(lines)

    def serve(self, part: str) -> None:
        """Start a service, and see that it answers; it stays until the next one or the end."""
        self.stop()
        say(f"$ {part} &")
        log, start = self.folder / "server.log", time.monotonic()
        words = shlex.split(part.removesuffix("&"), comments=True)
        with log.open("w") as errors:
            process = self._start(words, stderr=errors)
        self.server = process, log
        address = _address(log)
        while address is None and process.poll() is None:
            if time.monotonic() - start > READY_SECONDS:
                break
            time.sleep(0.5)
            address = _address(log)
        if address is None:
            return self.fail(f"no answer: {part}\n{log.read_text()}")
        for path in ("/readyz", "/"):
            with urllib.request.urlopen(address + path, timeout=60) as answer:
                say(f"{address}{path} answers {answer.status}")
        say(f"[{time.monotonic() - start:.0f} s]")

    def stop(self) -> None:
        """End the service that runs, if any."""
        if self.server is None:
            return
        (process, log), self.server = self.server, None
        process.terminate()
        if process.wait(timeout=60):
            self.fail(f"a service ended with {process.returncode}: {log.read_text()}")

    def fail(self, what: str) -> None:
        """Note what went wrong; the walk goes on."""
        say(f"FAILED, {what}")
        self.failures.append(what)

    def _start(self, command: list[str], **streams: object) -> "subprocess.Popen[str]":
        found = shutil.which(command[0], path=self.environment["PATH"]) or command[0]
        words = [found, *command[1:]]
        return subprocess.Popen(  # type: ignore[call-overload]
            words, cwd=self.folder, env=dict(self.environment), text=True, **streams
        )


def say(line: str) -> None:
    """A line of our own among what commands print."""
    print(f"# {line}", flush=True)


def _address(log: Path) -> str | None:
    """Where a service listens, as its log says once it does."""
    for line in log.read_text().splitlines():
        if '"event": "started"' in line:
            return str(json.loads(line)["address"])
    return None


def _fetched(lines: list[str]) -> str:
    """How much a command of pip's needed from the index."""
    sizes = {
        found[1]: float(found[2]) * _UNITS[found[3]]
        for found in map(_FETCHED.search, lines)
        if found
    }
    return f", {sum(sizes.values()) / 1e9:.2f} GB of packages" if sizes else ""


def checkout(target: Path) -> None:
    """A copy of what git knows of this checkout, or would know."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def variables() -> dict[str, str]:
    """A shell in the new environment, which keeps nothing outside `build/`; pip's files stay."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LASTWORD", "HF_"))}
    return kept | {
        "PATH": os.pathsep.join([str(PLACE / "venv" / "bin"), os.environ["PATH"]]),
        "PIP_CACHE_DIR": str(BUILD / "pip"),
        "XDG_CACHE_HOME": str(PLACE / "cache"),
        "XDG_CONFIG_HOME": str(PLACE / "config"),
        "HF_HOME": str(PLACE / "cache" / "huggingface"),
    }


def main(*tests: str) -> int:
    """Walk through README, then run tests in the same environment; 1 where anything failed."""
    shutil.rmtree(PLACE, ignore_errors=True)
    checkout(PLACE / "checkout")
    subprocess.run([sys.executable, "-m", "venv", PLACE / "venv"], check=True)
    walk = Walk(PLACE / "checkout", variables(), _hub_has)
    walk.page((ROOT / "README.md").read_text(encoding="utf-8"))
    say(f"the environment takes {_gigabytes(PLACE / 'venv'):.1f} GB")
    walk.run("pip install '.[dev]'")
    walk.run("pip list")
    quick = ["-p", "no:schemathesis", "-m", "not slow", "-n", "2", "--dist", "loadfile"]
    walk.run(shlex.join(["python", "-m", "pytest", *quick, *tests]))
    say(f"with what tests need it takes {_gigabytes(PLACE / 'venv'):.1f} GB")
    for failure in walk.failures:
        say(f"FAILED, {failure}")
    return 1 if walk.failures else 0


def _hub_has(name: str) -> bool:
    program = f"from huggingface_hub import HfApi; HfApi().model_info({name!r})"
    command = [PLACE / "venv" / "bin" / "python", "-c", program]
    try:
        asked = subprocess.run(command, env=variables(), capture_output=True, timeout=60)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def _gigabytes(folder: Path) -> float:
    return sum(p.stat().st_size for p in folder.rglob("*") if not p.is_symlink()) / 1e9


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
