"""A llama's forward in float64 from a GGUF file alone: numpy, and the package gguf for the bytes.

It reads the file as llama.cpp does: rotary positions turn neighbouring rows of queries and keys,
which is why the converter permutes them. Nothing here is transformers' or lastword's.
"""

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Llama:
    """A file of architecture `llama`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.blocks = int(self._value("block_count"))
        self.heads = int(self._value("attention.head_count"))
        self.shared = self.heads // int(self._value("attention.head_count_kv"))
        self.epsilon = float(self._value("attention.layer_norm_rms_epsilon"))
        self.base = float(self._value("rope.freq_base"))
        self.embedding = self.weight("token_embd")
        self.head = self.weight("output") if "output.weight" in self._tensors else self.embedding

    def _value(self, key: str) -> Any:
        return self._fields[f"llama.{key}"].contents()

    def weight(self, name: str) -> Array:
        tensor = self._tensors[f"{name}.weight"]
        dense = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        return dense.reshape(tuple(reversed(tensor.shape.tolist())))

    def log_probs(self, ids: list[int]) -> Array:
        """Log-probabilities of the next token at every place: [tokens, vocab]."""
        x = self.embedding[ids]
        for block in range(self.blocks):
            x = x + self._attention(self._normed(x, f"blk.{block}.attn_norm"), f"blk.{block}.")
            x = x + self._mlp(self._normed(x, f"blk.{block}.ffn_norm"), f"blk.{block}.")
        logits = self._normed(x, "output_norm") @ self.head.T
        peak = logits.max(-1, keepdims=True)
        return logits - peak - np.log(np.exp(logits - peak).sum(-1, keepdims=True))

    def _normed(self, x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon) * self.weight(name)

    def _attention(self, x: Array, at: str) -> Array:
        q, k, v = (self._split(x @ self.weight(f"{at}attn_{n}").T) for n in "qkv")
        q, k = self._turned(q), self._turned(k)
        k, v = np.repeat(k, self.shared, 0), np.repeat(v, self.shared, 0)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return (shares @ v).swapaxes(0, 1).reshape(len(x), -1) @ self.weight(f"{at}attn_output").T

    def _split(self, x: Array) -> Array:
        """[tokens, heads x size] -> [heads, tokens, size]; keys and values have fewer heads."""
        size = self.embedding.shape[1] // self.heads
        return x.reshape(len(x), -1, size).swapaxes(0, 1)

    def _turned(self, x: Array) -> Array:
        """Each pair of neighbours turned by its position times its frequency."""
        size = x.shape[-1]
        frequencies = self.base ** -(np.arange(0, size, 2) / size)
        turns = np.exp(1j * np.outer(np.arange(x.shape[1]), frequencies))
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turns
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    def _mlp(self, x: Array, at: str) -> Array:
        gate = x @ self.weight(f"{at}ffn_gate").T
        up = x @ self.weight(f"{at}ffn_up").T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"{at}ffn_down").T
