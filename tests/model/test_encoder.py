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
from lastword.errors import ModelError, UnsupportedModelError
from lastword.model.encoder import Encoder, batches

TEXTS = ["the red fox", "a", "[SEP] is text here", "pay the bill today or pay more than a lot"]


def plain(folder: Path, text: str, depth: int, pool: str, skipped: int = 0) -> np.ndarray:
    """Return the states of one text by transformers, pooled as sentence-transformers documents."""
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
def test_states_agree_with_transformers_at_every_depth(tmp_path: Path, pool: str) -> None:
    mode = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}.get(pool, pool)
    pooling = {"pooling_mode_mean_tokens": False, f"pooling_mode_{mode}": True}
    folder = write_encoder(tmp_path / "letters", pooling=pooling | {"include_prompt": True})
    encoder = Encoder(folder, "cpu")
    states = encoder.pooled(encoder.encode(TEXTS), range(DEPTH + 1))
    for row, text in zip(states, TEXTS, strict=True):
        for depth in range(DEPTH + 1):
            expected = plain(folder, text, depth, pool)
            expected /= np.linalg.norm(expected)
            np.testing.assert_allclose(row[depth], expected, atol=2e-6)


def test_prompt_lower_case_and_maximum_length_are_applied(tmp_path: Path) -> None:
    more = {"prompts": {"query": "ask: "}, "default_prompt_name": "query"}
    bert = {"max_seq_length": 12, "do_lower_case": True}
    pooling = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    modules = ("Transformer", "Pooling")
    options: dict[str, Any] = {"modules": modules, "pooling": pooling, "bert": bert, "more": more}
    folder = write_encoder(tmp_path / "letters", **options)
    encoder = Encoder(folder, "cpu")
    (state,) = encoder.pooled(encoder.encode([" THE fox "]), [DEPTH])
    # [CLS] and the four pieces of the prompt, `a ##s ##k :`, are read but not pooled.
    expected = plain(folder, "ask: the fox", DEPTH, "mean", skipped=5)
    np.testing.assert_allclose(state[0], expected, atol=2e-6)
    (long,) = encoder.encode(["a b c d e f g h i j k l m n"])
    assert len(long.tokens) == 12


def test_the_default_pooling_is_the_mean(tmp_path: Path) -> None:
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
def test_unsupported_modules_and_poolings_are_refused(
    tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        Encoder(write_encoder(tmp_path / "letters", **more), "cpu")


def test_a_missing_encoder_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    folders = [tmp_path / str(i) / "letters" for i in range(3)]
    described = [
        Encoder(write_encoder(folder, **kind), "cpu").describe()
        for folder, kind in zip(folders, kinds, strict=True)
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
