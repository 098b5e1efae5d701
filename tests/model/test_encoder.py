"""Sentence encoders: their files determine how a text is read and pooled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_encoders import DEPTH, write_encoder
from transformers import AutoModel, AutoTokenizer

from lastword import Tracer
from lastword.errors import ModelError
from lastword.model.encoder import Encoder, batches, load_encoder
from lastword.model.options import LoadOptions

TEXTS = ["the red fox", "a", "[SEP] is text here", "pay the bill today or pay more than a lot"]


def test_states_agree_with_transformers_at_every_depth(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "letters")
    encoder = Encoder(folder, "cpu")
    states = encoder.pooled(encoder.encode(TEXTS), range(DEPTH + 1))
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for row, text in zip(states, TEXTS, strict=True):
        encoded = tokenizer(text, return_tensors="pt", split_special_tokens=True)
        with torch.no_grad():
            hidden = model.eval()(**encoded, output_hidden_states=True).hidden_states
        for state, expected in zip(row, (h[0].mean(0).numpy() for h in hidden), strict=True):
            np.testing.assert_allclose(state, expected / np.linalg.norm(expected), atol=2e-6)


PLAIN, WHOLE = ("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")
QUERY = {"prompts": {"query": "ask: "}, "default_prompt_name": "query"}
SETUPS: list[dict[str, Any]] = [
    {"modules": ()},
    {"modules": PLAIN, "bert": {"max_seq_length": 12, "do_lower_case": True}},
    *(
        {
            "modules": modules,
            "pooling": {"pooling_mode_mean_tokens": False, f"pooling_mode_{m}": True},
        }
        for modules in (PLAIN, WHOLE)
        for m in ("mean_tokens", "cls_token", "max_tokens", "lasttoken")
    ),
    *(
        {"more": QUERY, "pooling": {"pooling_mode": mode, "include_prompt": included}}
        for mode in ("mean", "cls", "lasttoken")
        for included in (True, False)
    ),
]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_states_are_those_of_sentence_transformers(tmp_path: Path, setup: dict[str, Any]) -> None:
    from sentence_transformers import SentenceTransformer

    folder = write_encoder(tmp_path / "letters", **setup)
    texts = ["the red fox", " THE fox ", "a", "pay the bill today or pay more than a lot"]
    encoder = Encoder(folder, "cpu")
    states = encoder.pooled(encoder.encode(texts), [DEPTH])[:, 0]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts)
    np.testing.assert_allclose(states, expected, atol=2e-6)


def test_missing_and_unsupported_encoders_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path))
    dense = write_encoder(tmp_path / "dense", modules=(*PLAIN, "Dense"))
    root = write_encoder(tmp_path / "root", pooling={"pooling_mode_mean_sqrt_len_tokens": True})
    for read, place, words in (
        (Encoder, dense, "modules Transformer, Pooling, Dense"),
        (Encoder, root, "pools by mean_sqrt_len"),
        (Encoder, "mpnet", "`lastword get mpnet` fetches it once"),
        (Encoder, tmp_path / "none", "no encoder at"),
        (Tracer.from_pretrained, "lastword/mpnet", "is a sentence encoder: name it as a reader"),
    ):
        with pytest.raises(ModelError, match=words):
            read(place)


def test_pickled_weights_are_read_only_if_allowed(tmp_path: Path) -> None:
    """The rule is that of language models, and reaches the encoder from the model's options."""
    folder = write_encoder(tmp_path / "letters")
    safe = Encoder(folder, "cpu")
    encoded = safe.encode(TEXTS)
    torch.save(AutoModel.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors"):
        load_encoder(folder, LoadOptions("", device="cpu"))
    allowed = load_encoder(folder, LoadOptions("", device="cpu", allow_bin=True))
    expected = safe.pooled(encoded, [DEPTH])
    np.testing.assert_allclose(allowed.pooled(encoded, [DEPTH]), expected, rtol=1e-6)


def test_weights_and_pooling_are_part_of_the_identity(tmp_path: Path) -> None:
    pooling = {"pooling_mode_cls_token": True}
    described = [
        Encoder(write_encoder(tmp_path / str(i) / "letters", **kind), "cpu").describe()
        for i, kind in enumerate([{}, {"seed": 1}, {"pooling": pooling}])
    ]
    first, other_weights, other_pooling = (description["weights"] for description in described)
    assert {description["model"] for description in described} == {"letters"}
    assert first["weights"] != other_weights["weights"]
    assert first["weights"] == other_pooling["weights"]
    assert first["pooling"] != other_pooling["pooling"]


@given(st.lists(st.integers(1, 500), max_size=60))
def test_batches_contain_every_text_once_and_little_padding(lengths: list[int]) -> None:
    groups = [*batches(lengths)]
    assert sorted(place for group in groups for place in group) == [*range(len(lengths))]
    for group in groups:
        sizes = [lengths[i] for i in group]
        assert len(sizes) == 1 or max(sizes) <= 1.1 * min(sizes)
        assert len(sizes) == 1 or max(sizes) * len(sizes) <= 8192
