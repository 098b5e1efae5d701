"""Named tensors of a checkpoint, read one by one, without the model around them.

A checkpoint is a `config.json` and named tensors. Safetensors are read by byte range, through one
seam (`Files`) that a folder and a hub (`hub.py`) both fill; a `pytorch_model.bin` is read from disk
alone and through `weights_only`; a model in memory gives its state dict.
"""

import json
import math
import pickle
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from lastword.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
TORCH_SINGLE = "pytorch_model.bin"
TORCH_INDEX = "pytorch_model.bin.index.json"
# The format allows no longer header; a larger number is another file's first eight bytes.
_HEADER_LIMIT = 100_000_000
_AXES = 64  # most that a tensor has in torch
# What a header ends in that says nothing.
_NONSENSE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
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


class Files(ABC):
    """A flat set of files that can be read by byte range."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Return the name of these files in an error: a path, or a name on a hub."""

    @abstractmethod
    def read(self, file: str, start: int = 0, stop: int | None = None) -> bytearray | None:
        """Return bytes `start` to `stop` (None: the end) of a file; None where there is no file."""


@dataclass(frozen=True)
class LocalFiles(Files):
    """The files of a folder."""

    folder: Path

    @property
    def label(self) -> str:
        """Return the folder's path."""
        return str(self.folder)

    def read(self, file: str, start: int = 0, stop: int | None = None) -> bytearray | None:
        """Return bytes of a file in the folder; None where it does not exist."""
        path = self.folder / file
        if not path.is_file():
            return None
        size = path.stat().st_size
        with path.open("rb") as handle:
            # Nothing is done on the word of a header alone: a file has what it has, and a place
            # beyond what file systems know cannot be sought.
            handle.seek(min(start, size))
            data = bytearray(max((size if stop is None else min(stop, size)) - start, 0))
            return data[: handle.readinto(data)]


class Checkpoint(ABC):
    """A config and named tensors.

    Attributes:
        label: What errors call it.
        names: The names of all tensors.
    """

    names: frozenset[str]

    def __init__(self, label: str, config: Config) -> None:
        self.label, self.config = label, config

    @abstractmethod
    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor of that name, on the CPU and in the dtype that is stored.

        Raises:
            CheckpointError: It cannot be read, or is cut short.
        """


@dataclass(frozen=True)
class TensorInfo:
    """One line of a file's header: how and where a tensor is stored.

    Attributes:
        dtype: By the name in the header: `BF16`, in GGUF also `Q4_1` and the like.
        shape: As torch has it: the fastest axis last.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsCheckpoint(Checkpoint):
    """One safetensors file, or the shards of an index; headers are read when they are needed."""

    def __init__(self, files: Files, config: Config, shards: Mapping[str, str] | str) -> None:
        """Keep the files."""
        super().__init__(files.label, config)
        self._files = files
        self._headers: dict[str, dict[str, TensorInfo]] = {}
        self._shards: Mapping[str, str] = {}
        if isinstance(shards, str):
            shards = dict.fromkeys(self.header(shards), shards)
        self._shards, self.names = shards, frozenset(shards)

    def header(self, file: str) -> dict[str, TensorInfo]:
        """Return every tensor of one file: dtype, shape and byte range, by name."""
        if file not in self._headers:
            label = f"{self.label}/{file}"
            length = int.from_bytes(self._bytes(file, 0, 8), "little")
            if length > _HEADER_LIMIT:
                raise CheckpointError(f"{label} is no safetensors file: its header lies")
            header = _parse_header(self._bytes(file, 8, 8 + length), label)
            self._require_once(file, header)
            self._headers[file] = header
        return self._headers[file]

    def _require_once(self, file: str, header: Mapping[str, TensorInfo]) -> None:
        """Refuse a shard with a tensor that the index says is elsewhere, or does not name."""
        for name in header if self._shards else ():
            if (other := self._shards.get(name)) != file:
                where = "is not in the index" if other is None else f"is stored in {other} too"
                raise CheckpointError(
                    f"{self.label}/{file} has {name}, which {where}: get the whole checkpoint anew"
                )

    def tensors(self) -> Iterator[tuple[str, TensorInfo]]:
        """Yield every tensor's name, dtype, shape and place, from the headers alone."""
        for file in dict.fromkeys(self._shards.values()):
            header = self.header(file)
            yield from ((n, i) for n, i in header.items() if self._shards.get(n) == file)

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor's bytes, as its dtype and shape."""
        file = self._shards[name]
        if name not in self.header(file):
            raise CheckpointError(f"{self.label}/{file} lacks {name}, which the index promises")
        info = self.header(file)[name]
        if info.dtype not in _DTYPES:
            raise CheckpointError(f"{name} of {self.label} has dtype {info.dtype}, not known here")
        dtype = _DTYPES[info.dtype]
        if info.stop - info.start != math.prod(info.shape) * dtype.itemsize:
            raise CheckpointError(f"{self.label}/{file} gives {name} a range that is not its shape")
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


class TorchCheckpoint(Checkpoint):
    """`pytorch_model.bin`, one file or sharded, on disk and through `weights_only`."""

    def __init__(self, folder: Path, config: Config, shards: Mapping[str, str] | str) -> None:
        """Keep the folder; the arguments are `SafetensorsCheckpoint`'s."""
        super().__init__(str(folder), config)
        self._folder = folder
        self._files: dict[str, dict[str, Tensor]] = {}
        if isinstance(shards, str):
            shards = dict.fromkeys(self._load(shards), shards)
        self._shards, self.names = shards, frozenset(shards)

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor, mapped from its file where the format allows."""
        tensors = self._load(self._shards[name])
        if name not in tensors:
            raise CheckpointError(f"{self.label} lacks {name}, which the index promises")
        return tensors[name]

    def _load(self, file: str) -> dict[str, Tensor]:
        if file not in self._files:
            path = self._folder / file
            try:
                tensors = torch.load(
                    path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
                )
            except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise CheckpointError(f"cannot read {path} as weights only: {reason}") from error
            self._files[file] = {k: v for k, v in tensors.items() if isinstance(v, Tensor)}
        return self._files[file]


class ModelCheckpoint(Checkpoint):
    """The state dict of a transformers model in memory."""

    def __init__(self, model: nn.Module) -> None:
        config: Any = model.config
        super().__init__(type(model).__name__, config.to_dict())
        self._model = model
        self._state = {n: t for n, t in model.state_dict().items() if isinstance(t, Tensor)}
        self.names = frozenset(self._state)

    def read(self, name: str) -> Shaped[Tensor, "..."]:
        """Return the tensor on the CPU, gathered where it is sharded, fetched where offloaded."""
        tensor = self._state[name]
        if tensor.is_meta:
            tensor = _fetch_offloaded(self._model, name)
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
        return tensor.detach().cpu()


def open_local(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder, or of one file with its `config.json` beside it.

    Raises:
        CheckpointError: No config or no weights are there, or they cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    files = LocalFiles(folder)
    config = read_json(files, "config.json")
    if config is None:
        raise CheckpointError(f"{files.label} holds no config.json: name a checkpoint folder")
    if path.is_file():
        if path.suffix == ".safetensors":
            return SafetensorsCheckpoint(files, config, path.name)
        if path.suffix in {".bin", ".pt", ".pth"}:
            return TorchCheckpoint(folder, config, path.name)
        raise CheckpointError(
            f"{path} is neither .safetensors nor .bin: name the checkpoint folder"
        )
    checkpoint = open_safetensors(files, config)
    if checkpoint is not None:
        return checkpoint
    index, single = read_json(files, TORCH_INDEX), (folder / TORCH_SINGLE).is_file()
    if index is not None:
        _refuse_two(files, TORCH_SINGLE if single else None, TORCH_INDEX)
        return TorchCheckpoint(folder, config, _weight_map(index, files, TORCH_INDEX))
    if single:
        return TorchCheckpoint(folder, config, TORCH_SINGLE)
    raise CheckpointError(
        f"{folder} holds no {SINGLE}, {INDEX} or {TORCH_SINGLE}: name a checkpoint folder"
    )


def open_safetensors(files: Files, config: Config) -> SafetensorsCheckpoint | None:
    """Return the safetensors among the files, of which transformers reads the same.

    Returns:
        None where there are none.

    Raises:
        CheckpointError: There are two sets of weights, or the config names another file.
    """
    if (other := config.get("transformers_weights")) is not None:
        raise CheckpointError(
            f"the config of {files.label} names other weights ({other!r:.80}): take transformers_"
            "weights out of it, and name the weights model.safetensors"
        )
    index = read_json(files, INDEX)
    if index is not None:
        _refuse_two(files, SINGLE if files.read(SINGLE, 0, 8) is not None else None, INDEX)
        return SafetensorsCheckpoint(files, config, _weight_map(index, files, INDEX))
    if files.read(SINGLE, 0, 8) is not None:
        return SafetensorsCheckpoint(files, config, SINGLE)
    return None


def _refuse_two(files: Files, single: str | None, index: str) -> None:
    if single is not None:
        raise CheckpointError(
            f"{files.label} has two sets of weights, {single} and the shards of {index}: remove one"
        )


def read_json(files: Files, file: str) -> Config | None:
    """Return a JSON object; None where the file does not exist.

    Raises:
        CheckpointError: It is no JSON object.
    """
    data = files.read(file)
    if data is None:
        return None
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{files.label}/{file} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{files.label}/{file} is a JSON {type(value).__name__}, no object")
    return value


def _weight_map(index: Config, files: Files, file: str) -> dict[str, str]:
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise CheckpointError(f"{files.label}/{file} has no weight_map")
    for shard in shards.values():
        # An index is someone else's file: it names files beside itself, nothing above.
        if not isinstance(shard, str) or Path(shard).name != shard or shard == "..":
            raise CheckpointError(f"{files.label}/{file} names {shard!r}, no file beside itself")
    return shards


def _parse_header(text: bytearray, label: str) -> dict[str, TensorInfo]:
    origin = 8 + len(text)  # offsets count from the end of the header
    try:
        entries = json.loads(text)
        infos = {
            name: TensorInfo(
                str(entry["dtype"]),
                _shape(entry["shape"]),
                *(origin + _count(offset) for offset in entry["data_offsets"]),
            )
            for name, entry in entries.items()
            if name != "__metadata__"
        }
    except _NONSENSE as error:
        reason = repr(error) if len(repr(error)) < 200 else type(error).__name__
        raise CheckpointError(f"{label} has no readable safetensors header: {reason}") from error
    _check_ranges(infos, origin, label)
    return infos


def _shape(sizes: Any) -> tuple[int, ...]:
    if len(sizes) > _AXES:
        raise ValueError(f"no tensor has {len(sizes)} axes")
    return tuple(map(_count, sizes))


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("sizes and offsets are whole numbers from 0")
    return value


def _check_ranges(infos: Mapping[str, TensorInfo], origin: int, label: str) -> None:
    """Refuse tensors that overlap or leave a hole: the format lets them lie end to end."""
    place = origin
    for name, info in sorted(infos.items(), key=lambda entry: (entry[1].start, entry[1].stop)):
        if not place == info.start <= info.stop:
            raise CheckpointError(
                f"{label} has no readable safetensors header: {name!r:.80} lies at {info.start} to "
                f"{info.stop}, and the tensor before it ends at {place}; get the file again"
            )
        place = info.stop


def _fetch_offloaded(model: nn.Module, name: str) -> Tensor:
    path, _, leaf = name.rpartition(".")
    module = model.get_submodule(path)
    if not hasattr(module, "_hf_hook"):  # accelerate's, which knows where the data is
        raise CheckpointError(f"{name} of {type(model).__name__} has no data: load the weights")
    from accelerate.utils import align_module_device

    with align_module_device(module, execution_device="cpu"):
        tensor: Tensor = getattr(module, leaf).detach().clone()
    return tensor
