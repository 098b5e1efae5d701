"""Files of a model on a hub or a mirror, read by byte range and never downloaded whole.

Speaks what the hub speaks: `resolve` addresses, redirects to a store of large files (the token
stays behind there), `Range`, `X-Repo-Commit`, `Retry-After`. `HF_ENDPOINT`, `HF_TOKEN`, a login,
proxies and `HF_HUB_OFFLINE` are honoured through huggingface_hub's client and headers.

What is tried again is tried here. huggingface_hub's `http_stream_backoff` sleeps for as long as
`Retry-After` says, be it hours, and a body that breaks off within it ends in a RuntimeError; its
`http_backoff` and its file system read an answer whole, also one that ignores the range.
"""

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

try:  # what huggingface_hub 2 is built on, and what 1 is
    import httpx2 as httpx
except ImportError:  # pragma: no cover
    import httpx  # type: ignore[no-redef,import-not-found,unused-ignore]

# What huggingface_hub raises if the hub refuses a request or does not answer.
REFUSALS = (HfHubHTTPError, HFValidationError, OSError, httpx.RequestError)

_COMMIT = re.compile(r"[0-9a-f]{40}")
# A revision or a file's name whose parts lead nowhere else, as `..` and an absolute path do.
_INSIDE = re.compile(r"(?!.*((^|/)\.{0,2}(/|$)|\\)).{1,255}")
_BUSY = frozenset({429, 500, 502, 503, 504})
_FAILURES = 6  # in a row and without a byte gained
_UNANSWERED = 3  # where nobody is there at all: no network, no such name, nothing that listens
_LONGEST_WAIT = 300.0  # seconds: the hub's window for rate limits
_INSTEAD = (
    "name a folder, a GGUF file, or a model that needs no hub: lastword/demo-organism, or "
    "lastword/smollm2-135m after `lastword get smollm2-135m`"
)
_TIMEOUT = 30.0  # seconds without a byte


class UnreachableError(CheckpointError):
    """No answer came from the hub: it may still be in the local cache."""


class _AgainError(Exception):
    """The same request may do better, after so many seconds where the server says how many."""

    def __init__(self, reason: str, seconds: float | None = None) -> None:
        super().__init__(reason)
        self.seconds = seconds


class HubFiles(Files):
    """The files of one model at one revision.

    Attributes:
        name: `owner/name`, or a bare name.
        commit: The commit that the revision names, once the first file came; None where the
            server does not say.
    """

    def __init__(self, name: str, revision: str | None) -> None:
        """Name the model; nothing is fetched yet."""
        self.name = name
        self._revision = revision or constants.DEFAULT_REVISION
        self._endpoint = endpoint()
        self._shown = re.sub("//[^/@]*@", "//", self._endpoint)  # it may hold a password
        self._headers = build_hf_headers() | {"Accept-Encoding": "identity"}
        self.commit: str | None = None

    @property
    def label(self) -> str:
        """Return the model's name, and its revision where it is not the main branch."""
        main = self._revision in (constants.DEFAULT_REVISION, self.commit)
        return self.name if main else f"{self.name}@{self._revision}"

    def read(self, file: str, start: int = 0, stop: int | None = None) -> bytearray | None:
        """Return bytes of a file; a dropped connection goes on where it broke off.

        Raises:
            UnreachableError: No answer, or only refusals for being busy.
            CheckpointError: Login or permission is missing, or the server does not do ranges.
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
            except (_AgainError, httpx.RequestError) as error:
                failures = 1 if len(data) > before else failures + 1
                most = _UNANSWERED if isinstance(error, httpx.ConnectError) else _FAILURES
                if failures >= most:
                    raise UnreachableError(
                        f"{self._shown} did not give {file} of {self.label} in {failures} "
                        f"attempts ({str(error) or repr(error)}); try again later, or {_INSTEAD}"
                    ) from error
                wait = getattr(error, "seconds", None)
                time.sleep(0.5 * 2**failures if wait is None else wait)

    def _receive(self, file: str, start: int, stop: int | None, data: bytearray) -> None:
        """Append to `data` what is still missing of the bytes `start` to `stop`."""
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
            raise _AgainError("the connection dropped")

    def _check(self, response: Any, file: str, first: int | None) -> None:
        """Take the commit from an answer; refuse what is not the bytes that were asked for."""
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
                f"{self._shown} does not serve byte ranges, so {file} would come whole: "
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
    raise _AgainError(f"it is busy: status {response.status_code}", seconds)


def _length(response: Any) -> int:
    """Read the whole file's length from `Content-Range: bytes 0-7/100`; 0 where it is not said."""
    total = response.headers.get("Content-Range", "").rpartition("/")[2]
    return int(total) if total.isdigit() else 0


def is_commit(revision: str | None) -> bool:
    """Return True if a revision is a full commit, which names content and never moves."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def open_model(name: str, revision: str | None = None) -> Checkpoint:
    """Return a model's checkpoint: the download of the same commit, else the hub's safetensors.

    Where no hub answers, or `HF_HUB_OFFLINE` is set, a former download of that revision stands in.

    Raises:
        CheckpointError: The name is none, the model or its revision is not there, or not open to
            this user, or it has no safetensors.
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
            "(pytorch_model.bin is read from disk alone)"
        )
    return checkpoint


def require_name(name: str, revision: str | None, file: str | None = None) -> None:
    """Refuse what names no model, revision or file on a hub: the cache has folders of these names.

    Raises:
        CheckpointError: One of them does not.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise CheckpointError(
            f"{_shown(name)} is no checkpoint folder or file here, nor a name on a hub"
        ) from error
    for what, text in (("revision", revision), ("file", file)):
        if text is not None and not (text.isprintable() and _INSIDE.fullmatch(text)):
            raise CheckpointError(f"{_shown(text)} names no {what} of {name} on a hub")


def _shown(text: str) -> str:
    """Return a stranger's text as messages have it: in one line, and not all of it."""
    return shorten(text if text.isprintable() and text else repr(text), 80)


def open_gguf(name: str, file: str, revision: str | None = None) -> GgufCheckpoint:
    """Return a GGUF file among a model's: what was downloaded of the same commit, else the hub's.

    Raises:
        CheckpointError: As `open_model`, or the file is not there or cannot be used.
    """
    require_name(name, revision, file)
    files = HubFiles(name, revision)
    try:
        files.read(file, 0, 4)  # an answer tells the commit
    except UnreachableError:
        if (path := find_downloaded(name, file, revision)) is None:
            raise
        return open_file(path)
    path = find_downloaded(name, file, files.commit) if files.commit else None
    return GgufCheckpoint(files, file) if path is None else open_file(path)


def find_downloaded(name: str, file: str, revision: str | None) -> Path | None:
    """Return where huggingface_hub's cache keeps a file; None where it was not downloaded."""
    path = try_to_load_from_cache(name, file, revision=revision)
    return Path(path) if isinstance(path, str) else None


def find_commit(name: str, revision: str | None) -> str | None:
    """Return the commit that a revision names now: the hub's answer, else a former download's.

    Returns:
        None where neither knows; whoever asks for the files will be told why.

    Raises:
        UnreachableError: No hub answers, and nothing was downloaded before. The libraries that
            fetch the files would ask for a minute, and say less.
    """
    if is_commit(revision):
        return revision
    try:
        HubFiles(name, revision).read("config.json", 0, 1)
    except UnreachableError:
        if (path := find_downloaded(name, "config.json", revision)) is None:
            raise
        return _commit_of(path)
    except CheckpointError:
        return None
    try:  # this also keeps, for a start without a network, what the revision named
        return download(name, "config.json", revision)[1]
    except CheckpointError:
        return None


def _commit_of(file: Path) -> str | None:
    return next((part for part in file.parts if is_commit(part)), None)


def download(name: str, file: str, revision: str | None) -> tuple[Path, str | None]:
    """Return a file of a model in huggingface_hub's cache, and the commit that it is of.

    Raises:
        CheckpointError: It cannot be had.
    """
    try:
        path = Path(hf_hub_download(name, file, revision=revision, endpoint=endpoint()))
        return path, _commit_of(path)
    except REFUSALS as error:
        reason = str(error).strip().partition("\n")[0]
        raise CheckpointError(f"cannot download {file} of {name}: {reason}") from error


def endpoint() -> str:
    """Return the hub's address."""
    return os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")


def _downloaded(name: str, revision: str | None) -> Checkpoint | None:
    """Find what huggingface_hub's cache holds of a model; None where its weights are not there."""
    try:
        folder = snapshot_download(name, revision=revision, local_files_only=True)
        return open_local(Path(folder))
    except (LocalEntryNotFoundError, CheckpointError):
        return None
