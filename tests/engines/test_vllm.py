"""vLLM and this process agree on S, t, regime, operator and index of the same items.

These tests need vLLM (`make vllm`). Each fixture starts it once, which takes half a minute on two
idle cores. Heads have 32 dimensions, as its CPU kernels need.
"""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from copy import copy, deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import random_items, save, text_of, tokenizer
from vllm_home import PYTHON, needs_vllm

from lastword import Item, LoadOptions, Tracer
from lastword.decide.options import DecideOptions
from lastword.engines.vllm.checking import check
from lastword.engines.vllm.settings import VllmSettings
from lastword.errors import UnsupportedModelError
from lastword.lab.benchmarks import find
from lastword.methods import resolve
from lastword.records.decision import Decision
from lastword.text.passages import Passage

pytestmark = [pytest.mark.slow, needs_vllm]

CLOSE = 1e-4  # nats
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_head": 2},
    "qwen2": SIZES,
    "qwen3_moe": SIZES | {"head_dim": 32, "moe_intermediate_size": 32},
    "stablelm": SIZES,
}
LLAMA = SIZES | {"head_dim": 32}
BLOCK = 32  # tokens of a cached block
CACHED_BYTES = 6 * 2 * 2 * 32 * 4  # of one token in the llama: blocks, keys and values, heads


def served(options: LoadOptions, ranks: int = 1, **vllm: Any) -> Any:
    from lastword.engines.vllm.backend import open_decider

    loaded = DecideOptions(**{f.name: getattr(options, f.name) for f in fields(LoadOptions)})
    return open_decider(loaded, VllmSettings(PYTHON, ranks, vllm)).tracer


def saved(folder: Path, family: str, sizes: dict[str, Any]) -> Path:
    """Save a tiny random model with the tokenizer of the tests."""
    save(folder, family, **sizes)
    return folder


def both(options: LoadOptions, ranks: int = 1, **vllm: Any) -> tuple[Any, Tracer]:
    """Open a model in vLLM and in this process, with the tokenizer of the tests."""
    pair = served(options, ranks, **vllm), Tracer.from_pretrained(options)
    for tracer in pair:
        tracer.tokenizer = tokenizer()
    return pair


def assert_same(decisions: Sequence[Decision], expected: Sequence[Decision]) -> None:
    """Assert equal numbers, and equal decisions unless rounding may change them."""
    assert len(decisions) == len(expected) > 0
    for ours, plain in zip(decisions, expected, strict=True):
        assert np.abs(ours.trajectory - plain.trajectory).max() < CLOSE
        assert ours.t_scores is not None and plain.t_scores is not None
        assert np.abs(ours.t_scores - plain.t_scores).max() < CLOSE
        if plain.blind_scores is not None:
            assert ours.blind_scores is not None
            assert np.abs(ours.blind_scores - plain.blind_scores).max() < CLOSE
        if not in_band(plain):
            compared = ("regime", "operator", "index", "base_index", "decisive_layer", "mixing")
            assert [getattr(ours, n) for n in compared] == [getattr(plain, n) for n in compared]


def in_band(decision: Decision) -> bool:
    """Return True if a value is near its threshold, or the best two scores nearly tie."""
    values = [g for g in decision.gates.values() if isinstance(g.value, float)]
    near = any(abs(float(g.value or 0) - float(g.threshold)) < CLOSE for g in values)
    tops = (np.sort(scores)[-2:] for scores in (decision.scores, decision.base_scores))
    return near or any(np.ptp(top) < CLOSE for top in tops)


@pytest.fixture(scope="module")
def organism() -> Iterator[tuple[Any, Tracer]]:
    """The demo model in chunks of 64 tokens, with room for a few sequences at once."""
    options = LoadOptions("lastword/demo-organism")
    tracer = served(
        options,
        block_size=BLOCK,
        max_num_batched_tokens=64,
        max_num_seqs=8,
        enable_chunked_prefill=True,
        kv_cache_memory_bytes=4 * 2**20,
    )
    yield tracer, Tracer.from_pretrained(options)
    tracer.backend.close()


class TestOrganism:
    def test_every_item_of_the_demo_is_decided_as_in_this_process(self, organism):
        remote, local = organism
        benchmark = find("demo")
        items = benchmark.load(None).items(benchmark.template())
        expected = [*local.correct_many(items, "all")]
        assert_same([*remote.correct_many(items, "all")], expected)
        assert {d.operator for d in expected} == {"base", "decisive", "early"}
        # Again with only the states that the rule needs, in another order and a warm cache.
        few = items[:40]
        again = [*remote.correct_many(few[::-1] + few[:5], "decide")]
        same = expected[:40][::-1] + expected[:5]
        assert [(d.operator, d.index) for d in again] == [(d.operator, d.index) for d in same]

    def test_the_description_names_the_engine(self, organism):
        remote, local = organism
        description = remote.describe()
        engine = description["engine"]
        assert engine["name"] == "vllm" and engine["version"].startswith("0.")
        assert engine["options"]["block_size"] == BLOCK
        assert (description["dtype"], description["quantisation"]) == ("float32", None)
        assert description["invariant"] == pytest.approx(local.invariant)
        assert description["check"]["readout"] < CLOSE and description["check"]["depths"] < CLOSE
        assert "engine" not in local.describe()

    def test_methods_score_as_in_this_process(self, organism):
        remote, local = organism
        encoded = remote.encode([Item("What is", ("a", "b"))])
        few = ["base-mean", "early-exit@0.5", "decisive-only", "trace"]
        scores = remote.compare(encoded, resolve(few, remote.facts))
        expected = local.compare(encoded, resolve(few, local.facts))
        for name in few:
            assert np.allclose(scores[0][name], expected[0][name], atol=CLOSE)

    def test_a_model_that_is_read_wrongly_is_refused_by_name(self, organism):
        remote, local = organism
        side = remote.backend
        shallow = copy(side)
        shallow.facts = side.facts | {"depth": side.depth - 1}  # reads one block too few
        with pytest.raises(UnsupportedModelError, match="vLLM's Odd: .*from vLLM's log-prob"):
            check(shallow, "Odd")
        other = deepcopy(local.backbone.model)
        with torch.no_grad():
            other.model.layers[1].mlp.down_proj.weight.mul_(1.1)
        with pytest.raises(UnsupportedModelError, match="Odd: .*from transformers at some depth"):
            check(side, "Odd", other)

    def test_a_killed_process_is_replaced_and_the_run_continues(self, organism, caplog):
        remote, local = organism
        items = [Item("What is", ("a", "b")), Item("Where is", ("c", "d"))]
        expected = [*local.correct_many(items, "all")]
        os.kill(remote.backend.process.pid, signal.SIGKILL)
        assert_same([*remote.correct_many(items, "all")], expected)
        assert "ended by signal SIGKILL" in caplog.text


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "llama", "llama", LLAMA)


@pytest.fixture(scope="module")
def mixing(llama: Path) -> Iterator[tuple[Any, Tracer]]:
    """A llama on the mix branch; prompts fill several blocks, come in chunks and preempt others."""
    pair = both(
        LoadOptions(llama, invariant=2.0),
        block_size=BLOCK,
        max_num_batched_tokens=64,
        max_num_seqs=4,
        long_prefill_token_threshold=16,
        scheduler_reserve_full_isl=False,
        kv_cache_memory_bytes=9 * BLOCK * CACHED_BYTES,
    )
    yield pair
    pair[0].backend.close()


class TestPrefixes:
    def test_every_operator_of_the_mix_branch_is_used(self, mixing):
        remote, local = mixing
        items = random_items(3, 60)
        expected = [*local.correct_many(items, "all")]
        assert {d.operator for d in expected} == {"base", "decisive", "mix"}
        assert_same([*remote.correct_many(items, "all")], expected)

    @pytest.mark.parametrize("shared", [BLOCK - 2, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK + 1])
    def test_items_that_share_a_prefix_up_to_and_past_a_block(self, mixing, shared):
        remote, local = mixing
        prefix = [3 + i % 300 for i in range(shared)]
        sharing = [
            Item(text_of([*prefix, *end]), tuple(text_of([9, c, c + 1]) for c in range(10, 13)))
            for end in ([], [7], [7, 8], [50] * 40)
        ]
        # This prompt begins with the prompt of the first item and its first answer.
        longer = Item(text_of([*prefix, 9, 10, 11, 60]), (text_of([70]), text_of([71, 72])))
        items = [*sharing, longer, sharing[0]]
        expected = [*local.correct_many(items, "all")]
        for _ in range(2):  # cold and warm
            assert_same([*remote.correct_many(items, "all")], expected)

    def test_prompts_that_do_not_fit_at_once(self, mixing):
        remote, local = mixing  # four at a time want 16 blocks of 9: vLLM 0.32 preempts 16 times
        items = [
            Item(
                text_of([3 + (7 * k + i) % 300 for i in range(120)]),
                tuple(text_of([9, c, c + 1]) for c in range(10, 13)),
            )
            for k in range(8)
        ]
        assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])

    def test_rows_inside_a_cached_prefix_are_computed_again(self, mixing):
        remote, _ = mixing
        ids = [*range(3, 3 + 2 * BLOCK + 5)]
        rows = len(ids)
        request = {"ids": ids, "positions": [*range(rows)], "rows": [*range(rows)]}
        call = remote.backend.process.call
        read = np.arange(rows), np.full(rows, 5), [0, 3], None
        results = []
        for again in (0, 1):
            assert call("compute", [request], rows, [0, 3], "the same") == again
            results.append(call("read", *read)[1])
        cold, warm = results
        assert np.allclose(cold, warm, atol=CLOSE)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Tracer]]]:
    remotes: list[Any] = []

    def make(family: str, sizes: dict[str, Any], **more: Any) -> tuple[Any, Tracer]:
        tracers = both(LoadOptions(saved(tmp_path, family, sizes), invariant=2.0), **more)
        remotes.append(tracers[0])
        return tracers

    yield make
    for tracer in remotes:
        tracer.backend.close()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families(pair, family):
    remote, local = pair(family, FAMILIES[family])
    items = random_items(5, 24)
    assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_pooled_states_and_every_depth_are_those_of_this_process(pair, eager):
    remote, local = pair("llama", LLAMA, enforce_eager=eager)
    passages = [Passage((*range(3, 3 + 2 * n),), n // 2) for n in (1, 5, 40)]
    depths = [0, 2, local.profile.depth]
    states, expected = (tracer.pooled(passages, depths) for tracer in (remote, local))
    assert np.abs(states - expected).max() < 1e-4 * np.abs(expected).max()
    items = random_items(7, 24)
    assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])
    assert remote.describe()["engine"]["options"] == {"enforce_eager": eager}


def test_two_ranks_share_a_model(pair, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # one machine, without NUMA nodes
    remote, local = pair("llama", LLAMA, ranks=2)
    assert remote.describe()["engine"]["tensor_parallel"] == 2
    items = random_items(6, 24)
    assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])
