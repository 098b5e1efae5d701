"""A stand-in for the hub on this machine, with redirects, byte ranges and refusals.

It has two ports: the hub, and the store of large files to which it redirects. The store must not
receive a token.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.utils
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """The served files, the simulated faults, and a log of the requests.

    Attributes:
        folder: Files of the one model, `org/model`.
        commit: The commit of its main branch; None sends no commit.
        token: The required token; None if none is required.
        gated: Whether access is refused even with a token.
        ranges: Whether ranges are served.
        large: Suffixes of files that are redirected to the store.
        status: Status of all answers, if set.
        served: Bytes of bodies sent, by file.
        requests: (port's role, path, Range, Authorization) of every request.
    """

    folder: Path
    commit: str | None = COMMIT
    token: str | None = None
    gated: bool = False
    ranges: bool = True
    large: tuple[str, ...] = (".safetensors",)
    status: int | None = None
    served: dict[str, int] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    url: str = ""
    store: str = ""


def etag(file: Path) -> str:
    """Return an identifier of a file's content, quoted as in HTTP."""
    return f'"{hashlib.sha256(file.read_bytes()).hexdigest()}"'


def _handler(hub: Hub, role: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            if hub.commit and role == "hub":
                self.send_header("X-Repo-Commit", hub.commit)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            file = self.path.rpartition("/")[2]
            hub.served[file] = hub.served.get(file, 0) + len(body)
            self.wfile.write(body)

        def do_GET(self) -> None:
            byte_range, token = self.headers.get("Range"), self.headers.get("Authorization")
            hub.requests.append((role, self.path, byte_range, token))
            if role == "hub" and (refused := self.refusal(token)):
                return self.answer(refused[0], b"no", X_Error_Code=refused[1])
            if role == "hub" and self.path.startswith("/api/models/org/model"):
                return self.answer(200, self.listing(), Content_Type="application/json")
            file = hub.folder / self.path.rpartition("/")[2]
            if not file.is_file():
                return self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
            if role == "hub" and file.name.endswith(hub.large):
                linked = {"X_Linked_Size": str(file.stat().st_size), "X_Linked_Etag": etag(file)}
                return self.answer(302, b"", Location=f"{hub.store}/blobs/{file.name}", **linked)
            return self.send_file(file.read_bytes(), byte_range, ETag=etag(file))

        def do_HEAD(self) -> None:
            self.do_GET()

        def listing(self) -> bytes:
            """Return the hub's description of the model, or of a folder of its files."""
            if "/tree/" in self.path:
                return b"[]"
            names = [{"rfilename": f.name} for f in sorted(hub.folder.iterdir())]
            return json.dumps({"id": "org/model", "sha": hub.commit, "siblings": names}).encode()

        def refusal(self, token: str | None) -> tuple[int, str] | None:
            if hub.status:
                return hub.status, ""
            if hub.gated:
                return 403, "GatedRepo"
            parts = self.path.removeprefix("/api/models").split("?")[0].split("/")
            if parts[1:3] != ["org", "model"]:
                return (404 if token else 401), "RepoNotFound"
            if len(parts) > 4 and parts[4] not in ("main", "v2", hub.commit):
                return 404, "RevisionNotFound"
            if hub.token and token != f"Bearer {hub.token}":
                return 401, "GatedRepo" if token is None else ""
            return None

        def send_file(self, content: bytes, byte_range: str | None, **headers: str) -> None:
            if byte_range is None or not hub.ranges:
                return self.answer(200, content, **headers)
            first, _, last = byte_range.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1 if last else len(content), len(content))
            if start >= len(content):
                return self.answer(416)
            span = f"bytes {start}-{stop - 1}/{len(content)}"
            return self.answer(206, content[start:stop], Content_Range=span, **headers)

    return Handler


@contextmanager
def instead(folder: Path, cache: Path, patch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Make the stand-in this process's only hub, without login and with a separate cache."""
    with serve(folder) as hub:
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.delenv("HF_TOKEN", raising=False)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache / "hf"))
        huggingface_hub.utils.close_session()
        yield hub
        huggingface_hub.utils.close_session()


@contextmanager
def serve(folder: Path) -> Iterator[Hub]:
    """Serve the hub and its store on free ports until the block ends."""
    hub = Hub(folder)
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, r)) for r in ("hub", "store")]
    hub.url, hub.store = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    threads = [
        threading.Thread(target=s.serve_forever, kwargs={"poll_interval": 0.01}) for s in servers
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
