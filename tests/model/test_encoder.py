"""Sentence encoders: their own files say how a text is read and pooled."""

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
from lastword.errors import ModelError, UnsupportedModelError
from lastword.model.encoder import Encoder, batches

TEXTS = ["the red fox", "a", "[SEP] is text here", "pay the bill today or pay more than a lot"]


def plain(folder: Path, text: str, depth: int, pool: str, skipped: int = 0) -> np.ndarray:
    """One text by transformers alone, pooled as sentence-transformers documents it."""
    model, tokenizer = (
        AutoModel.from_pretrained(folder).eval(),
        AutoTokenizer.from_pretrained(folder),
    )
    encoded = tokenizer(text, return_tensors="pt", split_special_tokens=True)
    with torch.no_grad():
        hidden = model(**encoded, output_hidden_states=True).hidden_states[depth][0, skipped:]
    pooled = {"mean": hidden.mean(0), "cls": hidden[0], "lasttoken": hidden[-1]}
    pooled["max"] = hidden.max(0).values
    return np.asarray(pooled[pool])


@pytest.mark.parametrize("pool", ["mean", "cls", "max", "lasttoken"])
def test_states_are_those_of_a_plain_forward_at_every_depth(tmp_path: Path, pool: str) -> None:
    mode = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(pool, pool)
    pooling = {"pooling_mode_mean_tokens": False, f"pooling_mode_{mode}": True}
    folder = write_encoder(tmp_path / "own", pooling=pooling | {"include_prompt": True})
    encoder = Encoder(folder, "cpu")
    states = encoder.pooled(encoder.encode(TEXTS), range(DEPTH + 1))
    for row, text in zip(states, TEXTS, strict=True):
        for depth in range(DEPTH + 1):
            expected = plain(folder, text, depth, pool)
            expected /= np.linalg.norm(expected)
            np.testing.assert_allclose(row[depth], expected, atol=2e-6)


def test_a_prompt_lower_case_and_the_length_are_honoured(tmp_path: Path) -> None:
    more = {"prompts": {"query": "ask: "}, "default_prompt_name": "query"}
    bert = {"max_seq_length": 12, "do_lower_case": True}
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    modules = ("Transformer", "Pooling")
    folder = write_encoder(tmp_path / "own", modules=modules, pooling=pooling, bert=bert, more=more)
    encoder = Encoder(folder, "cpu")
    (state,) = encoder.pooled(encoder.encode([" THE fox "]), [DEPTH])
    # [CLS] and the four pieces of the prompt, `a ##s ##k :`, are read and not pooled.
    expected = plain(folder, "ask: the fox", DEPTH, "mean", skipped=5)
    np.testing.assert_allclose(state[0], expected, atol=2e-6)
    (long,) = encoder.encode(["a b c d e f g h i j k l m n"])
    assert len(long.tokens) == 12


def test_a_folder_that_says_nothing_is_pooled_by_the_mean(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "plain", modules=())
    encoder = Encoder(folder, "cpu")
    (state,) = encoder.pooled(encoder.encode(TEXTS[:1]), [1])
    np.testing.assert_allclose(state[0], plain(folder, TEXTS[0], 1, "mean"), atol=2e-6)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"modules": ("Transformer", "Pooling", "Dense")}, "modules Transformer, Pooling, Dense"),
        ({"pooling": {"pooling_mode_mean_sqrt_len_tokens": True}}, "pools by mean_sqrt_len"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        Encoder(write_encoder(tmp_path / "own", **more), "cpu")


def test_an_encoder_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="`lastword get mpnet` fetches it once"):
        Encoder("mpnet")
    with pytest.raises(ModelError, match="is a sentence encoder: name it as a reader"):
        Tracer.from_pretrained("lastword/mpnet")
    with pytest.raises(ModelError, match="no encoder at"):
        Encoder(tmp_path / "none")


def test_weights_and_pooling_are_part_of_the_identity(tmp_path: Path) -> None:
    pooling = {"pooling_mode_cls_token": True}
    kinds = [{}, {"seed": 1}, {"pooling": pooling}]
    folders = [tmp_path / str(i) / "own" for i in range(3)]
    described = [
        Encoder(write_encoder(folder, **kind), "cpu").describe()
        for folder, kind in zip(folders, kinds, strict=True)
    ]
    first, other_weights, other_pooling = (own["weights"] for own in described)
    assert {own["model"] for own in described} == {"own"}
    assert first["weights"] != other_weights["weights"]
    assert first["weights"] == other_pooling["weights"]
    assert first["pooling"] != other_pooling["pooling"]


@given(st.lists(st.integers(1, 500), max_size=60))
def test_batches_hold_every_text_once_and_pad_little(lengths: list[int]) -> None:
    groups = [*batches(lengths)]
    assert sorted(place for group in groups for place in group) == [*range(len(lengths))]
    for group in groups:
        own = [lengths[i] for i in group]
        assert len(own) == 1 or (max(own) <= 1.1 * min(own) and max(own) * len(own) <= 8192)
