"""Sentence encoders: models with attention in both directions and one pooled state per text.

The files of sentence-transformers say how states are pooled, how many tokens an encoder takes, and
which prompt comes before a text. They are read here, without that library (docs/statistics.md).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file

from lastword.errors import ModelError, UnsupportedModelError
from lastword.model import named
from lastword.model.layout import lay_out_if_faster, rounded
from lastword.model.loading import device_of, in_one_line
from lastword.model.options import LoadOptions
from lastword.model.weights.identity import folder_digests, model_name, text_digest
from lastword.model.whole import require_whole
from lastword.text.tokens import Passage

Pool = Literal["mean", "cls", "max", "lasttoken"]
_MODULES = ["Transformer", "Pooling", "Normalize"]  # the last one is optional
# Modules after or beside the blocks, which no state depends on: a checkpoint may lack or add them.
_HEADS = re.compile(r"^(\w+\.)?(pooler|cls|lm_head)\.")
_TOKENS = 8192  # maximum per batch, with padding
_WASTE = 1.1  # maximum ratio of the longest to the shortest text of a batch


@dataclass(frozen=True)
class EncoderSetup:
    """Settings in an encoder's files."""

    pool: Pool
    normalised: bool  # the pooled state is divided by its length
    prompt: str  # before every text
    prompt_pooled: bool
    lower: bool
    context: int  # tokens; longer texts are cut at the end


class EncoderProfile(NamedTuple):
    """The number of an encoder's blocks, and the width of a state."""

    depth: int
    width: int


class Encoder:
    """A sentence encoder as a source of states, one per text and depth.

    Depth 0 is the embeddings' output and depth L the last block's. States at every depth are pooled
    in the same way. Weights are float32. The model is a hub name, a folder, or `minilm` or `mpnet`,
    which `lastword get` downloads; `LoadOptions` describes the others.
    """

    def __init__(
        self,
        model: str | Path,
        device: str = "auto",
        *,
        allow_bin: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        place = _place(str(model))
        self._device = device_of(device)
        # Without `trust_remote_code`, transformers would ask the user on the terminal.
        code = {"trust_remote_code": trust_remote_code}
        with in_one_line(f"the encoder {place}"):
            config = AutoConfig.from_pretrained(place, **code)
            if config.is_encoder_decoder:
                raise UnsupportedModelError(f"{model} is an encoder with a decoder, not an encoder")
            self.tokenizer = AutoTokenizer.from_pretrained(place, **code)
            loaded, info = AutoModel.from_pretrained(
                place,
                config=config,
                dtype=torch.float32,
                use_safetensors=None if allow_bin else True,
                output_loading_info=True,
                **code,
            )
            require_whole(place, loaded, info, _HEADS)
            self.setup = _setup(place, _positions(loaded), self.tokenizer)
        self._model = loaded.eval().to(self._device)
        self._laid_out = lay_out_if_faster(self._model)
        self.place = place
        self.profile = EncoderProfile(config.num_hidden_layers, config.hidden_size)

    @property
    def name(self) -> str:
        """Its name on the hub, or its folder's name."""
        return model_name(self.place)

    def __sklearn_clone__(self) -> "Encoder":
        """Return this object, so that clones of a scikit-learn estimator share the encoder."""
        return self

    def describe(self) -> dict[str, Any]:
        """Return the encoder's identity for a probe's file: name, commit and digests."""
        pooling = text_digest(json.dumps(asdict(self.setup), sort_keys=True))
        return {
            "model": self.name,
            "revision": getattr(self._model.config, "_commit_hash", None),
            "weights": folder_digests(Path(self.place)) | {"pooling": pooling},
        }

    def encode(self, texts: Sequence[str]) -> list[Passage]:
        """Return the tokens of each text; control tokens in it are encoded as text."""
        setup = self.setup
        prompts = [f"{setup.prompt}{text}".strip() for text in texts]
        if setup.lower:
            prompts = [text.lower() for text in prompts]
        options = {"truncation": True, "max_length": setup.context, "split_special_tokens": True}
        ids = self.tokenizer(prompts, **options)["input_ids"] if prompts else []
        start = 0
        if setup.prompt and not setup.prompt_pooled:
            start = len(self.tokenizer(setup.prompt)["input_ids"]) - 1  # without the end token
        return [Passage(tuple(tokens), min(start, len(tokens) - 1)) for tokens in ids]

    @torch.inference_mode()
    def pooled(
        self, passages: Sequence[Passage], depths: Sequence[int]
    ) -> Float[np.ndarray, "passages depths width"]:
        """Return the pooled state of each passage at some depths, in float32; it may be NaN."""
        out = np.empty((len(passages), len(depths), self.profile.width), dtype=np.float32)
        for places in batches([len(passage.tokens) for passage in passages]):
            out[places] = self._batch([passages[i] for i in places], depths).cpu().numpy()
        return out

    def _batch(self, passages: Sequence[Passage], depths: Sequence[int]) -> Tensor:
        device, padding = self._device, self.tokenizer.pad_token_id or 0
        rows = [torch.tensor(passage.tokens, dtype=torch.long) for passage in passages]
        ids = pad_sequence(rows, batch_first=True, padding_value=padding).to(device)
        if self._laid_out:
            length = min(rounded(ids.shape[1]), self.setup.context)
            ids = pad(ids, (0, length - ids.shape[1]), value=padding)
        spans = torch.tensor([(p.start, len(p.tokens)) for p in passages], device=device)
        place = torch.arange(ids.shape[1], device=device)
        present = place < spans[:, 1:]
        pooled = present & (place >= spans[:, :1])
        inputs = {"input_ids": ids, "attention_mask": present.long()}
        hidden = self._model(**inputs, output_hidden_states=True).hidden_states
        return torch.stack([self._pool(hidden[depth], pooled) for depth in depths], dim=1)

    def _pool(self, states: Tensor, pooled: Tensor) -> Tensor:
        """Return one state per text [texts, width] from states [texts, tokens, width]."""
        mask = pooled[:, :, None]
        rows = torch.arange(len(states), device=states.device)
        match self.setup.pool:
            case "mean":
                one = (states * mask).sum(dim=1) / mask.sum(dim=1)
            case "max":
                one = states.masked_fill(~mask, -torch.inf).amax(dim=1)
            case "cls":
                one = states[rows, pooled.int().argmax(dim=1)]
            case "lasttoken":
                one = states[rows, states.shape[1] - 1 - pooled.flip(1).int().argmax(dim=1)]
        return torch.nn.functional.normalize(one, dim=1) if self.setup.normalised else one


def load_encoder(model: str | Path, options: LoadOptions) -> Encoder:
    """Load an encoder on a model's device, under its rules for code and pickled weights."""
    rules = {"allow_bin": options.allow_bin, "trust_remote_code": options.trust_remote_code}
    return Encoder(model, options.device, **rules)


def is_encoder(name: str) -> bool:
    """Return True for a published encoder."""
    return (model := named.published(name)) is not None and model.zipped


def installed(name: str) -> bool:
    """Return True if `lastword get` has downloaded the encoder of a name."""
    return is_encoder(name) and named.entry(name).place is not None


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield batches of texts of similar length, as indices, so that there is little padding."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[place]
        if batch and (length > _WASTE * lengths[batch[0]] or (len(batch) + 1) * length > _TOKENS):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _place(name: str) -> str:
    path = Path(name).expanduser()
    if is_encoder(name) and not path.is_dir():
        return str(named.locate(name))
    if name.startswith((".", "/", "~")) and not (path / "config.json").is_file():
        raise ModelError(f"no encoder at {path}: expected a folder with config.json")
    return str(path) if path.is_dir() else name


def _positions(model: PreTrainedModel) -> int:
    limit = getattr(model.config, "max_position_embeddings", 2**30)
    # RoBERTa's and MPNet's families count positions from the one after the padding index on.
    modules = (m for name, m in model.named_modules() if name.endswith("position_embeddings"))
    padding = (getattr(module, "padding_idx", None) for module in modules)
    return int(limit - next((index + 1 for index in padding if index is not None), 0))


def _setup(place: str, positions: int, tokenizer: Any) -> EncoderSetup:
    """Return the settings in an encoder's files; the mean over all tokens without them."""
    modules = _json(place, "modules.json") or []
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds and kinds not in (_MODULES, _MODULES[:2]):
        raise UnsupportedModelError(
            f"{place} has the modules {', '.join(kinds)}; expected {', '.join(_MODULES)}"
        )
    pooling = (_json(place, f"{modules[1]['path']}/config.json") if kinds else None) or {}
    root = f"{modules[0]['path']}/" if kinds and modules[0]["path"] else ""
    bert = _json(place, f"{root}sentence_bert_config.json") or {}
    prompts = _json(place, "config_sentence_transformers.json") or {}
    prompt = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name") or "", "")
    length = bert.get("max_seq_length") or tokenizer.model_max_length
    return EncoderSetup(
        pool=_pool_of(place, pooling),
        normalised="Normalize" in kinds,
        prompt=str(prompt or ""),
        prompt_pooled=bool(pooling.get("include_prompt", True)),
        lower=bool(bert.get("do_lower_case", False)),
        context=min(int(length), positions),
    )


def _pool_of(place: str, pooling: Mapping[str, object]) -> Pool:
    # New files have one `pooling_mode`; old ones a flag per mode, as `pooling_mode_mean_tokens`.
    flags = [name.removeprefix("pooling_mode_") for name, on in pooling.items() if on is True]
    modes = [flag.removesuffix("_tokens").removesuffix("_token") for flag in flags]
    modes = [mode for mode in modes if mode != "include_prompt"]
    if isinstance(mode := pooling.get("pooling_mode"), str):
        modes = [mode]
    pools: tuple[Pool, ...] = get_args(Pool)
    for pool in pools:
        if [pool] == (modes or ["mean"]):
            return pool
    raise UnsupportedModelError(
        f"{place} pools by {' and '.join(modes)}; expected one of {', '.join(pools)}"
    )


def _json(place: str, file: str) -> Any:
    kinds = ("missing_entries", "connection_errors")
    quiet = {f"_raise_exceptions_for_{kind}": False for kind in kinds}
    path = cached_file(place, file, **quiet)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
