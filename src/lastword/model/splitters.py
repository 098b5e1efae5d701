"""Rules for splitting text before a GGUF file's merges apply, by the name in the file.

Names and expressions are those of llama.cpp (`llm_tokenizer_bpe` in src/llama-vocab.cpp); each
expression splits the pieces of the one before it. transformers has most of these names, and would
use GPT-2's rule for all others.
"""

from collections.abc import Mapping
from typing import Any

from lastword.errors import CheckpointError

_PRE = "tokenizer.ggml.pre"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_QWEN2 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RULES = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "stablelm2": (_QWEN2,),
}


def is_bpe(values: Mapping[str, Any]) -> bool:
    """Return True if a file's tokenizer merges pairs, and so needs a rule for splitting text."""
    return values.get("tokenizer.ggml.model") == "gpt2"


def settle_splitter(tokenizer: Any, values: Mapping[str, Any], label: str) -> None:
    """Make a tokenizer split text as llama.cpp does for a file with this metadata."""
    if not is_bpe(values):
        return
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    name = values.get(_PRE)
    if name in GGUF_PRE_TOKENIZER_SPLITS:
        return
    if (rules := _RULES.get(str(name))) is None:
        rule = f"as {name!r:.60}, which is not known here" if name else "by a rule that it omits"
        raise CheckpointError(
            f"{label} splits its text {rule} ({_PRE}): take the model's safetensors"
        )
    splits = [Split(Regex(rule), "isolated") for rule in rules]
    last = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.backend_tokenizer.pre_tokenizer = Sequence([*splits, last])
