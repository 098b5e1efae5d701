"""Files of a model on a hub or a mirror, read by byte range.

It uses huggingface_hub's client and headers, so that `HF_ENDPOINT`, `HF_TOKEN`, a login, proxies
and `HF_HUB_OFFLINE` apply. The hub may redirect to a store of large files, which does not get the
token.

Retries are implemented here for two reasons. huggingface_hub's `http_stream_backoff` sleeps as long
as `Retry-After` says, even for hours, and raises a RuntimeError if the body breaks off. Its
`http_backoff` and its file system read a whole answer, even if it ignores the range.
"""

import contextlib
import os
import re
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    hf_hub_download,
    hf_hub_url,
    snapshot_download,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)
from huggingface_hub.utils import build_hf_headers, get_session, validate_repo_id

from lastword.errors import CheckpointError
from lastword.files.wording import shorten
from lastword.model.weights.checkpoint import (
    Checkpoint,
    Files,
    open_local,
    open_safetensors,
    read_json,
)
from lastword.model.weights.gguf import GgufCheckpoint, open_file

try:  # the client of huggingface_hub 2, and of version 1
    import httpx2 as httpx
except ImportError:  # pragma: no cover
    import httpx  # type: ignore[no-redef,import-not-found,unused-ignore]

# Errors of huggingface_hub if the hub refuses a request or does not answer.
REFUSALS = (HfHubHTTPError, HFValidationError, OSError, httpx.RequestError)

_COMMIT = re.compile(r"[0-9a-f]{40}")
# A revision or file name that is not an absolute path, and has no part such as `..`.
_INSIDE = re.compile(r"(?!.*((^|/)\.{0,2}(/|$)|\\)).{1,255}")
_BUSY = frozenset({429, 500, 502, 503, 504})
_FAILURES = 6  # maximum number in a row without a new byte
_UNANSWERED = 3  # maximum number without a connection
_LONGEST_WAIT = 300.0  # seconds; the hub's rate limits have this window
_INSTEAD = (
    "name a folder, a GGUF file, or a model that needs no hub: lastword/demo-organism, or "
    "lastword/smollm2-135m after `lastword get smollm2-135m`"
)
_TIMEOUT = 30.0  # seconds without a byte


class UnreachableError(CheckpointError):
    """The hub did not answer; the model may still be in the local cache."""


class _RetryError(Exception):
    """The same request may succeed later, after `seconds` if the server gives a number."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class HubFiles(Files):
    """The files of one model at one revision.

    Attributes:
        name: `owner/name`, or a bare name.
        commit: The commit of the revision, known after the first answer; None if the server does
            not send it.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        self.name = name
        self._revision = revision or constants.DEFAULT_REVISION
        self._endpoint = endpoint()
        self._shown = re.sub("//[^/@]*@", "//", self._endpoint)  # without a password
        self._headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        self.commit: str | None = None

    @property
    def label(self) -> str:
        """The model's name, with its revision unless that is the main branch."""
        main = self._revision in (constants.DEFAULT_REVISION, self.commit)
        return self.name if main else f"{self.name}@{self._revision}"

    def read(self, file: str, start: int = 0, stop: int | None = None) -> bytearray | None:
        """Return bytes of a file; after a dropped connection, only the rest is requested.

        Raises:
            UnreachableError: The hub does not answer, or is busy.
            CheckpointError: Login or permission is missing, or the server does not support ranges.
        """
        data, failures = bytearray(), 0
        while True:
            before = len(data)
            try:
                self._receive(file, start, stop, data)
                return data
            except FileNotFoundError:
                return None
            except OfflineModeIsEnabled as error:
                raise UnreachableError(
                    f"{self.label}: HF_HUB_OFFLINE is set, so no hub was asked; {_INSTEAD}"
                ) from error
            except (_RetryError, httpx.RequestError) as error:
                failures = 1 if len(data) > before else failures + 1
                limit = _UNANSWERED if isinstance(error, httpx.ConnectError) else _FAILURES
                if failures >= limit:
                    raise UnreachableError(
                        f"{self._shown} did not give {file} of {self.label} in {failures} "
                        f"attempts ({str(error) or repr(error)}); try again later, or {_INSTEAD}"
                    ) from error
                wait = getattr(error, "seconds", None)
                time.sleep(0.5 * 2**failures if wait is None else wait)

    def _receive(self, file: str, start: int, stop: int | None, data: bytearray) -> None:
        """Append the missing bytes of the range `start` to `stop` to `data`."""
        first = start + len(data)
        ranged = first > 0 or stop is not None
        headers = dict(self._headers)
        if ranged:
            headers["Range"] = f"bytes={first}-{'' if stop is None else stop - 1}"
        revision = self.commit or self._revision
        url = hf_hub_url(self.name, file, revision=revision, endpoint=self._endpoint)
        with get_session().stream(
            "GET", url, headers=headers, timeout=_TIMEOUT, follow_redirects=True
        ) as response:
            _raise_if_busy(response, self._shown)
            self._check(response, file, first if ranged else None)
            for chunk in response.iter_bytes():
                data += chunk
                if stop is not None and len(data) > stop - start:
                    raise CheckpointError(f"{self._shown} sends more of {file} than asked for")
        if stop is not None and len(data) < stop - start <= _length(response) - start:
            raise _RetryError("the connection dropped")

    def _check(self, response: Any, file: str, first: int | None) -> None:
        """Refuse an error or an answer without the range, and store the commit."""
        status, code = response.status_code, response.headers.get("X-Error-Code", "")
        if status == HTTPStatus.NOT_FOUND and code not in ("RepoNotFound", "RevisionNotFound"):
            raise FileNotFoundError(file)
        if status >= HTTPStatus.BAD_REQUEST:
            raise CheckpointError(self._refusal(status, code, file))
        if first is not None and (
            status != HTTPStatus.PARTIAL_CONTENT
            or not response.headers.get("Content-Range", "").startswith(f"bytes {first}-")
        ):
            raise CheckpointError(
                f"{self._shown} does not serve byte ranges, so all of {file} would be downloaded: "
                f"download {self.label} and name the folder"
            )
        for answer in (*response.history, response):
            commit = answer.headers.get("X-Repo-Commit")
            if self.commit is None and commit and _COMMIT.fullmatch(commit):
                self.commit = commit

    def _refusal(self, status: int, code: str, file: str) -> str:
        page = f"{self._shown}/{self.name}"
        if code == "GatedRepo" or status == HTTPStatus.FORBIDDEN:
            return (
                f"{self.label} is gated ({status}): ask for access at {page}, then log in "
                "(`hf auth login`) or set HF_TOKEN"
            )
        if code == "RevisionNotFound":
            return f"{self.name} has no revision {self._revision} at {self._shown}"
        if status == HTTPStatus.UNAUTHORIZED:
            return (
                f"{self.label} does not exist at {self._shown} or needs a login ({status}): "
                "check the name, log in (`hf auth login`) or set HF_TOKEN"
            )
        if status == HTTPStatus.NOT_FOUND:
            return f"{self.label} is neither a folder here nor a model at {self._shown}"
        return f"{self._shown} answers {status} for {file} of {self.label}"


def _raise_if_busy(response: Any, endpoint: str) -> None:
    if response.status_code not in _BUSY:
        return
    patience = response.headers.get("Retry-After", "")
    seconds = float(patience) if patience.isdigit() else None
    if seconds is not None and seconds > _LONGEST_WAIT:
        raise UnreachableError(f"{endpoint} is busy and asks to wait {patience} s: try again then")
    raise _RetryError(f"it is busy: status {response.status_code}", seconds)


def _length(response: Any) -> int:
    """Return the file's length from `Content-Range: bytes 0-7/100`; 0 if it is not there."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else 0


def is_commit(revision: str | None) -> bool:
    """Return True if a revision is a full commit, whose files never change."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def open_model(name: str, revision: str | None = None) -> Checkpoint:
    """Return a model's checkpoint: the download of the same commit, else the hub's safetensors.

    If the hub does not answer, or `HF_HUB_OFFLINE` is set, an earlier download of the revision is
    used.

    Raises:
        CheckpointError: The name is not valid, the user has no access to the model or its revision,
            or it has no safetensors.
    """
    require_name(name, revision)
    if is_commit(revision) and (download := _downloaded(name, revision)) is not None:
        return download
    files = HubFiles(name, revision)
    try:
        config = read_json(files, "config.json")
    except UnreachableError:
        if (download := _downloaded(name, revision)) is None:
            raise
        return download
    if config is None:
        raise CheckpointError(
            f"{files.label} is neither a folder here nor a model with a config.json at the hub"
        )
    download = _downloaded(name, files.commit) if files.commit else None
    checkpoint = download or open_safetensors(files, config)
    if checkpoint is None:
        raise CheckpointError(
            f"{files.label} has no safetensors on the hub: download it and name the folder "
            "(pytorch_model.bin is read only from disk)"
        )
    return checkpoint


def require_name(name: str, revision: str | None, file: str | None = None) -> None:
    """Refuse names of models, revisions or files that a hub cannot have, such as `../x`.

    huggingface_hub uses them as paths in its cache.

    Raises:
        CheckpointError: One of them is not valid.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise CheckpointError(
            f"{_shown(name)} is no checkpoint folder or file here, nor a name on a hub"
        ) from error
    for noun, text in (("revision", revision), ("file", file)):
        if text is not None and not (text.isprintable() and _INSIDE.fullmatch(text)):
            raise CheckpointError(f"{_shown(text)} names no {noun} of {name} on a hub")


def _shown(text: str) -> str:
    """Return an untrusted text for messages: short, and on one line."""
    return shorten(text if text.isprintable() and text else repr(text), 80)


def open_gguf(name: str, file: str, revision: str | None = None) -> GgufCheckpoint:
    """Return a GGUF file of a model: the download of the same commit, else the hub's.

    Raises:
        CheckpointError: See `open_model`; or the file is missing or cannot be used.
    """
    require_name(name, revision, file)
    files = HubFiles(name, revision)
    try:
        files.read(file, 0, 4)  # sets the commit
    except UnreachableError:
        if (path := find_downloaded(name, file, revision)) is None:
            raise
        return open_file(path)
    path = find_downloaded(name, file, files.commit) if files.commit else None
    return GgufCheckpoint(files, file) if path is None else open_file(path)


def find_downloaded(name: str, file: str, revision: str | None) -> Path | None:
    """Return the path of a file in huggingface_hub's cache; None if it was not downloaded."""
    path = try_to_load_from_cache(name, file, revision=revision)
    return Path(path) if isinstance(path, str) else None


def find_commit(name: str, revision: str | None) -> str | None:
    """Return the commit of a revision, from the hub or from an earlier download; else None.

    Raises:
        UnreachableError: The hub does not answer, and nothing was downloaded before. Without this
            error, transformers would retry for a minute.
    """
    if is_commit(revision):
        return revision
    try:
        HubFiles(name, revision).read("config.json", 0, 1)
    except UnreachableError:
        if (path := find_downloaded(name, "config.json", revision)) is None:
            raise
        return commit_of(path)
    except CheckpointError:
        return None
    # The download also stores the commit of the revision, for a start without a network.
    with contextlib.suppress(CheckpointError):
        return download(name, "config.json", revision)[1]
    return None


def commit_of(file: Path) -> str | None:
    """Return the commit in the path of a file in huggingface_hub's cache."""
    return next((part for part in file.parts if is_commit(part)), None)


def download(name: str, file: str, revision: str | None) -> tuple[Path, str | None]:
    """Return a file of a model in huggingface_hub's cache, and its commit.

    Raises:
        CheckpointError: The file cannot be downloaded.
    """
    try:
        path = Path(hf_hub_download(name, file, revision=revision, endpoint=endpoint()))
        return path, commit_of(path)
    except REFUSALS as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"cannot download {file} of {name}: {reason}") from error


def endpoint() -> str:
    """Return the hub's address."""
    return os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")


def _downloaded(name: str, revision: str | None) -> Checkpoint | None:
    """Return the checkpoint in huggingface_hub's cache; None if its weights are not there."""
    with contextlib.suppress(LocalEntryNotFoundError, CheckpointError):
        return open_local(Path(snapshot_download(name, revision=revision, local_files_only=True)))
    return None
