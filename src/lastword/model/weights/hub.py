"""Models on a hub or a mirror, through huggingface_hub: commits, downloads and byte ranges.

`HF_ENDPOINT`, `HF_TOKEN`, a login, proxies and `HF_HUB_OFFLINE` apply.
"""

import os
import re
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (
    build_hf_headers,
    hf_raise_for_status,
    http_backoff,
    validate_repo_id,
)

from lastword.errors import CheckpointError, one_line
from lastword.files.wording import shorten
from lastword.model.weights.checkpoint import (
    Files,
    SafetensorsCheckpoint,
    local_files,
    open_local,
    open_safetensors,
    read_json,
)

try:  # the client of huggingface_hub 2, and of version 1
    import httpx2 as httpx
except ImportError:  # pragma: no cover
    import httpx  # type: ignore[no-redef,import-not-found,unused-ignore]

# Errors of huggingface_hub if the hub refuses a request or does not answer.
REFUSALS = (HfHubHTTPError, HFValidationError, OSError, httpx.RequestError)
_COMMIT = re.compile(r"[0-9a-f]{40}")
# A revision or file name that is not an absolute path, and has no part such as `..`.
_INSIDE = re.compile(r"(?!.*((^|/)\.{0,2}(/|$)|\\)).{1,255}")
_INSTEAD = (
    "name a folder, a GGUF file, or a model that needs no hub: lastword/demo-organism, or "
    "lastword/smollm2-135m after `lastword get smollm2-135m`"
)


def hub_files(name: str, commit: str) -> Files:
    """Return the files of one commit of a model."""

    def read(file: str, start: int, stop: int | None) -> bytearray | None:
        url = hf_hub_url(name, file, revision=commit, endpoint=endpoint())
        span = f"bytes={start}-{'' if stop is None else stop - 1}"
        try:
            response = http_backoff("GET", url, headers=build_hf_headers() | {"Range": span})
            hf_raise_for_status(response)
        except EntryNotFoundError:
            return None
        except REFUSALS as error:
            raise _refusal(name, commit, file, error) from error
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            return bytearray(response.content)
        return bytearray(response.content[start:stop])  # a server without ranges sends everything

    return Files(name, read)


def open_model(name: str, revision: str | None = None) -> SafetensorsCheckpoint:
    """Return a model's checkpoint: a download of the same commit, else the hub's safetensors."""
    path, commit = download(name, "config.json", revision)
    if any(path.parent.glob("*.safetensors")) and (local := open_local(path.parent)).is_whole:
        return local
    config = read_json(local_files(path.parent), path.name) or {}
    if (remote := open_safetensors(hub_files(name, commit), config)) is None:
        raise CheckpointError(
            f"{name} has no safetensors on the hub: download it and name the folder "
            "(pytorch_model.bin is read only from disk)"
        )
    return remote


def download(name: str, file: str, revision: str | None) -> tuple[Path, str]:
    """Return a file of a model in huggingface_hub's cache, and its commit.

    If the hub does not answer, this is the last download of the file; an error if there is none.
    """
    require_name(name, revision, file)
    try:
        path = Path(hf_hub_download(name, file, revision=revision, endpoint=endpoint()))
    except REFUSALS as error:
        raise _refusal(name, revision, file, error) from error
    return path, _commit_of(path) or ""


def _refusal(name: str, revision: str | None, file: str, error: Exception) -> CheckpointError:
    place = re.sub("//[^/@]*@", "//", endpoint())  # without a password
    status = getattr(getattr(error, "response", None), "status_code", None)
    login = "log in (`hf auth login`) or set HF_TOKEN"
    if isinstance(error, GatedRepoError):
        why = f"is gated: ask for access at {place}/{name}, then {login}"
    elif isinstance(error, RevisionNotFoundError):
        why = f"has no revision {revision} at {place}"
    elif isinstance(error, RepositoryNotFoundError) or status == HTTPStatus.UNAUTHORIZED:
        why = f"does not exist at {place} or needs a login: check the name, {login}"
    elif isinstance(error, LocalEntryNotFoundError | httpx.RequestError):
        asked = f"{place} did not give {file}: try again later, or"
        asked = "HF_HUB_OFFLINE is set, so no hub was asked;" if constants.HF_HUB_OFFLINE else asked
        why = f"is not here, and {asked} {_INSTEAD}"
    elif isinstance(error, EntryNotFoundError):
        why = f"has no file {file} at {place}"
    else:
        why = f"cannot be read from {place} ({file}): {shorten(one_line(error), 200)}"
    return CheckpointError(f"{name} {why}")


def require_name(name: str, revision: str | None, file: str | None = None) -> None:
    """Refuse names of models, revisions or files that a hub cannot have, such as `../x`.

    huggingface_hub uses them as paths in its cache.
    """
    with suppress(HFValidationError):
        validate_repo_id(name)
        for noun, text in (("revision", revision), ("file", file)):
            if text is not None and not (text.isprintable() and _INSIDE.fullmatch(text)):
                raise CheckpointError(
                    f"{shorten(repr(text), 80)} names no {noun} of {name} on a hub"
                )
        return
    unknown = "is no checkpoint folder or file here, nor a name on a hub"
    raise CheckpointError(f"{shorten(repr(name), 80)} {unknown}")


def downloaded_commit(name: str, file: str, revision: str | None) -> str | None:
    """Return the commit of a file that was downloaded; None if it was not."""
    with suppress(HFValidationError):
        path = try_to_load_from_cache(name, file, revision=revision)
        return _commit_of(Path(path)) if isinstance(path, str) else None
    return None


def _commit_of(file: Path) -> str | None:
    return next((part for part in file.parts if _COMMIT.fullmatch(part)), None)


def endpoint() -> str:
    """Return the hub's address."""
    return os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
