"""Named tensors of a checkpoint, read one by one, without building the model.

Safetensors are read by byte range from a folder or a hub (`Files`, `hub.py`), since the library
safetensors reads only local files. A model in memory is read from its state dict.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from lastword.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_HEADER_LIMIT = 100_000_000  # bytes, by the format
# Errors while a malformed header is parsed.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

Config = dict[str, Any]


class Files(NamedTuple):
    """The files of a folder, or of a commit on a hub, with its path or name."""

    label: str
    # Bytes of a file from a start to a stop (None: its end); None if there is no such file.
    read: Callable[[str, int, int | None], bytearray | None]


def local_files(folder: Path) -> Files:
    """Return the files of a folder."""

    def read(file: str, start: int, stop: int | None) -> bytearray | None:
        path = folder / file
        if not path.is_file():
            return None
        size = path.stat().st_size  # a damaged header may give any number
        with path.open("rb") as handle:
            handle.seek(min(start, size))
            return bytearray(handle.read(max(min(size if stop is None else stop, size) - start, 0)))

    return Files(str(folder), read)


class Checkpoint(ABC):
    """A config and named tensors; `label` is its name in messages."""

    names: frozenset[str]

    def __init__(self, label: str, config: Config) -> None:
        self.label, self.config = label, config

    @abstractmethod
    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor of a name, on the CPU and in the stored dtype."""


class TensorInfo(NamedTuple):
    """The entry of a tensor in a file's header, with its bytes in the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsCheckpoint(Checkpoint):
    """A single safetensors file, or the shards of an index, read when they are needed."""

    def __init__(self, files: Files, config: Config, shards: Mapping[str, str] | str) -> None:
        super().__init__(files.label, config)
        self._files = files
        self._headers: dict[str, dict[str, TensorInfo]] = {}
        self._shards: Mapping[str, str] = {}
        if isinstance(shards, str):
            shards = dict.fromkeys(self.header(shards), shards)
        self._shards, self.names = shards, frozenset(shards)

    @property
    def is_whole(self) -> bool:
        """True if no file is missing."""
        return all(self._files.read(file, 0, 1) for file in {*self._shards.values()})

    def header(self, file: str) -> dict[str, TensorInfo]:
        """Return the entries of all tensors of a file, by name."""
        if file in self._headers:
            return self._headers[file]
        label = f"{self.label}/{file}"
        length = int.from_bytes(self._bytes(file, 0, 8), "little")
        if length > _HEADER_LIMIT:
            raise CheckpointError(f"{label} is not a safetensors file: its header is too long")
        header = _parse_header(self._bytes(file, 8, 8 + length), label)
        # If a tensor is in two shards, transformers and the index may disagree on which counts.
        for name in header if self._shards else ():
            if (other := self._shards.get(name)) != file:
                where = "is not in the index" if other is None else f"is stored in {other} too"
                raise CheckpointError(
                    f"{label} has {name}, which {where}: get the whole checkpoint again"
                )
        self._headers[file] = header
        return header

    def tensors(self) -> Iterator[tuple[str, TensorInfo]]:
        """Yield the name and entry of every tensor, from the headers."""
        for file in dict.fromkeys(self._shards.values()):
            yield from self.header(file).items()

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor of a name."""
        file = self._shards[name]
        if name not in self.header(file):
            raise CheckpointError(f"{self.label}/{file} lacks {name}, which is in the index")
        info = self.header(file)[name]
        if (dtype := _DTYPES.get(info.dtype)) is None:
            raise CheckpointError(f"{name} of {self.label} has dtype {info.dtype}, not known here")
        if info.stop - info.start != math.prod(info.shape) * dtype.itemsize:
            raise CheckpointError(
                f"{self.label}/{file} gives {name} a range that does not fit its shape"
            )
        data = self._bytes(file, info.start, info.stop)
        return torch.frombuffer(data, dtype=dtype).reshape(info.shape)

    def _bytes(self, file: str, start: int, stop: int) -> bytearray:
        data = self._files.read(file, start, stop)
        if data is None:
            raise CheckpointError(f"{self.label} lacks {file}: get the whole checkpoint")
        if len(data) != stop - start:
            raise CheckpointError(
                f"{self.label}/{file} is cut short: bytes {start} to {stop} were expected, "
                f"{len(data)} came; get the file again"
            )
        return data


class ModelCheckpoint(Checkpoint):
    """The state dict of a transformers model in memory."""

    def __init__(self, model: "PreTrainedModel") -> None:
        super().__init__(type(model).__name__, model.config.to_dict())
        self._model = model
        self._state = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor)}
        self.names = frozenset(self._state)

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor on the CPU, also if it is sharded or offloaded."""
        tensor = self._state[name]
        if tensor.is_meta:
            path, _, leaf = name.rpartition(".")
            module = self._model.get_submodule(path)
            if not hasattr(module, "_hf_hook"):  # set by accelerate
                raise CheckpointError(f"{name} of {self.label} has no data: load the weights")
            tensor = fetched(module, leaf, "cpu")
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
        return tensor.detach().cpu()


def open_local(folder: Path) -> SafetensorsCheckpoint:
    """Return the checkpoint in a folder."""
    files = local_files(folder)
    config, checkpoint = read_json(files, "config.json"), None
    if config is not None:
        checkpoint = open_safetensors(files, config)
    if config is None or checkpoint is None:
        missing = "config.json" if config is None else f"{SINGLE} or {INDEX}"
        raise CheckpointError(f"{folder} holds no {missing}: name a checkpoint folder")
    return checkpoint


def open_safetensors(files: Files, config: Config) -> SafetensorsCheckpoint | None:
    """Return the safetensors that transformers would read; None if there are none."""
    index, has_single = read_json(files, INDEX), files.read(SINGLE, 0, 8) is not None
    if index is None:
        return SafetensorsCheckpoint(files, config, SINGLE) if has_single else None
    if has_single:
        raise CheckpointError(
            f"{files.label} has two sets of weights, {SINGLE} and the shards of {INDEX}: remove one"
        )
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{files.label}/{INDEX} has no weight_map")
    for shard in shards.values():
        # The index is not trusted: a path must not lead out of its folder.
        if not isinstance(shard, str) or Path(shard).name != shard or shard == "..":
            raise CheckpointError(f"{files.label}/{INDEX} names {shard!r}, which is not beside it")
    return SafetensorsCheckpoint(files, config, shards)


def read_json(files: Files, file: str) -> Config | None:
    """Return a JSON object; None if the file does not exist."""
    if (data := files.read(file, 0, None)) is None:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{files.label}/{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{files.label}/{file} is a JSON {type(value).__name__}, no object")
    return value


def _parse_header(text: bytearray, label: str) -> dict[str, TensorInfo]:
    origin = 8 + len(text)  # offsets count from the end of the header
    infos = {}
    try:
        for name, entry in json.loads(text).items():
            if name != "__metadata__":
                start, stop = (origin + int(offset) for offset in entry["data_offsets"])
                shape = tuple(map(int, entry["shape"]))
                infos[name] = TensorInfo(str(entry["dtype"]), shape, start, stop)
    except _MALFORMED as error:
        raise CheckpointError(
            f"{label} has no readable safetensors header: {error!r:.200}"
        ) from error
    return infos


def fetched(module: nn.Module, name: str, device: torch.device | str) -> Tensor:
    """Return a copy on a device of a module's parameter, which accelerate has offloaded."""
    from accelerate.utils import align_module_device

    with align_module_device(module, execution_device=device):
        tensor: Tensor = getattr(module, name).detach().clone()
    return tensor
