"""Small sentence encoders with random weights, as folders of sentence-transformers."""

import json
import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import BertProcessing
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WIDTH, DEPTH = 32, 2
_CLASS = "sentence_transformers.models."


def write_encoder(
    folder: Path,
    *,
    modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    pooling: dict[str, Any] | None = None,
    bert: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
    seed: int = 0,
) -> Path:
    """Write an encoder that reads letters; without `modules` its folder has no modules.json."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    signs = [*string.ascii_lowercase, ":", "[", "]"]
    pieces = [*special, *signs, *(f"##{sign}" for sign in signs)]
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=False)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), special, strict=True))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=64,
        **{f"{name}_token": token for name, token in names.items()},
    )
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 64}
    config = BertConfig(vocab_size=len(pieces), initializer_range=0.5, **sizes)
    torch.manual_seed(seed)
    BertModel(config).eval().save_pretrained(folder)
    fast.save_pretrained(folder)
    files: dict[str, Any] = {"sentence_bert_config.json": bert, "1_Pooling/config.json": pooling}
    files |= {"config_sentence_transformers.json": more}
    if modules:
        paths = ("", "1_Pooling", "2_Normalize")
        files["modules.json"] = [
            {"idx": i, "name": str(i), "path": path, "type": f"{_CLASS}{kind}"}
            for i, (kind, path) in enumerate(zip(modules, paths, strict=False))
        ]
        modes = pooling or {"pooling_mode_mean_tokens": True}
        files["1_Pooling/config.json"] = {"word_embedding_dimension": WIDTH, **modes}
    for name, content in files.items():
        if content is not None:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content))
    return folder
