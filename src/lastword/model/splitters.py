"""Rules for splitting text before a GGUF file's merges apply, by the name in the file.

Names and expressions are those of llama.cpp (`llm_tokenizer_bpe` in src/llama-vocab.cpp); each
expression splits the pieces of the one before it. transformers has some of these names, and would
use GPT-2's rule for all others.
"""

import logging
from typing import Any

from lastword.errors import CheckpointError
from lastword.model.weights.gguf import Header

PRE, _MERGES = "tokenizer.ggml.pre", "tokenizer.ggml.merges"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHATGLM = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_WORDS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_MARKS = r"[\p{P}\$\+<=>\^~\|]+"
_BY_RULE: dict[tuple[str, ...], str] = {
    (_MARKS, _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
    (_GPT2,): (
        "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de jina-v2-code gigachat mpt olmo jais "
        "exaone4 trillion granite-docling"
    ),
    (r"\p{N}", _GPT2): "starcoder refact command-r smollm codeshell exaone minerva-7b",
    (_QWEN2,): "qwen2 stablelm2 hunyuan",
    (_CHATGLM,): "chatglm-bpe glm4",
    (_MARKS.replace("|]", "|`]"), _GPT2, "[0-9][0-9][0-9]"): "falcon",
    (_WORDS,): "bloom poro-chat gpt3-finnish",
    (_WORDS, r"\p{N}"): "viking",
}
_RULES = {name: rules for rules, names in _BY_RULE.items() for name in names.split()}

_log = logging.getLogger("lastword")


def require_merges(header: Header) -> None:
    """Refuse a file with a byte-pair tokenizer but without merges.

    Raises:
        CheckpointError: The merges are missing.
    """
    if header.values.get("tokenizer.ggml.model") == "gpt2" and _MERGES not in header.values:
        raise CheckpointError(
            f"{header.label} has no {_MERGES}, without which its text cannot be split into tokens: "
            "convert the model again"
        )


def settle_splitter(tokenizer: Any, header: Header) -> None:
    """Make a tokenizer split text as llama.cpp does for this file.

    Raises:
        CheckpointError: The name of the rule is unknown.
    """
    if header.values.get("tokenizer.ggml.model") != "gpt2":
        return
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    name = header.values.get(PRE)
    if name in GGUF_PRE_TOKENIZER_SPLITS:
        return
    if name is None:
        _log.warning(
            "%s has no %s: its text is split by llama.cpp's default rule, which may not be the "
            "model's",
            *(header.label, PRE),
        )
    if (rules := _RULES.get(str(name or "default"))) is None:
        raise CheckpointError(
            f"{header.label} splits its text as {name!r:.60} ({PRE}), which is not known here: "
            "take the model's safetensors"
        )
    splits = [Split(Regex(rule), "isolated") for rule in rules]
    last = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([*splits, last])
