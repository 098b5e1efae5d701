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
from typing import Any

import huggingface_hub.utils
import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """The served files, the simulated faults, and a log of the requests."""

    folder: Path  # of the one model, `org/model`
    token: str | None = None  # that is required
    gated: bool = False  # access is refused even with a token
    ranges: bool = True  # are served
    large: tuple[str, ...] = (".safetensors",)  # suffixes of files in the store
    status: int | None = None  # of all answers
    served: dict[str, int] = field(default_factory=dict)  # bytes by file
    # (port's role, path, Range, Authorization) of every request.
    requests: list[tuple[str, str, str | None, str | None]] = field(default_factory=list)
    url: str = ""
    store: str = ""


def _handler(hub: Hub, role: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            if role == "hub":
                self.send_header("X-Repo-Commit", COMMIT)
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
                listing: Any = {"id": "org/model", "sha": COMMIT, "siblings": []}
                body = json.dumps([] if "/tree/" in self.path else listing)
                return self.answer(200, body.encode(), Content_Type="application/json")
            file = hub.folder / self.path.rpartition("/")[2]
            if not file.is_file():
                return self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
            content = file.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            if role == "hub" and file.name.endswith(hub.large):
                linked = {"X_Linked_Size": str(len(content)), "X_Linked_Etag": etag}
                return self.answer(302, b"", Location=f"{hub.store}/blobs/{file.name}", **linked)
            return self.send_file(content, byte_range, ETag=etag)

        do_HEAD = do_GET

        def refusal(self, token: str | None) -> tuple[int, str] | None:
            if hub.status:
                return hub.status, ""
            if hub.gated:
                return 403, "GatedRepo"
            parts = self.path.removeprefix("/api/models").split("?")[0].split("/")
            if parts[1:3] != ["org", "model"]:
                return (404 if token else 401), "RepoNotFound"
            if len(parts) > 4 and parts[4] not in ("main", "v2", COMMIT):
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
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
