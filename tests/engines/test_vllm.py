"""vLLM against this process: S, t, regime, operator and index of the same items.

Run where vLLM is (`make vllm`). Each fixture starts it once, which takes half a minute on two idle
cores; heads of 32, for its CPU kernels want so many.
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
    """A tiny lively model on disk; its tokenizer is the double's."""
    save(folder, family, **sizes)
    return folder


def both(options: LoadOptions, ranks: int = 1, **vllm: Any) -> tuple[Any, Tracer]:
    """A model in vLLM and here, under the double's tokenizer."""
    pair = served(options, ranks, **vllm), Tracer.from_pretrained(options)
    for tracer in pair:
        tracer.tokenizer = tokenizer()
    return pair


def assert_same(found: Sequence[Decision], expected: Sequence[Decision]) -> None:
    """Equal numbers, and equal decisions where no comparison is a matter of rounding."""
    assert len(found) == len(expected) > 0
    for ours, plain in zip(found, expected, strict=True):
        assert np.abs(ours.trajectory - plain.trajectory).max() < CLOSE
        assert ours.t_scores is not None and plain.t_scores is not None
        assert np.abs(ours.t_scores - plain.t_scores).max() < CLOSE
        if plain.blind_scores is not None:
            assert ours.blind_scores is not None
            assert np.abs(ours.blind_scores - plain.blind_scores).max() < CLOSE
        if not in_band(plain):
            told = ("regime", "operator", "index", "base_index", "decisive_layer", "mixing")
            assert [getattr(ours, n) for n in told] == [getattr(plain, n) for n in told]


def in_band(decision: Decision) -> bool:
    """Whether a comparison is within rounding of its threshold, or a choice of a tie."""
    values = [g for g in decision.gates.values() if isinstance(g.value, float)]
    near = any(abs(float(g.value or 0) - float(g.threshold)) < CLOSE for g in values)
    tops = (np.sort(scores)[-2:] for scores in (decision.scores, decision.base_scores))
    return near or any(np.ptp(top) < CLOSE for top in tops)


@pytest.fixture(scope="module")
def organism() -> Iterator[tuple[Any, Tracer]]:
    """The organism in chunks of 64 tokens, with room for few sequences at once."""
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
    def test_every_item_of_the_demo_is_decided_as_here(self, organism):
        remote, local = organism
        benchmark = find("demo")
        items = benchmark.load(None).items(benchmark.template())
        expected = [*local.correct_many(items, "all")]
        assert_same([*remote.correct_many(items, "all")], expected)
        assert {d.operator for d in expected} == {"base", "decisive", "early"}
        few = items[:40]  # and as the rule alone asks, in another order and company, warm
        again = [*remote.correct_many(few[::-1] + few[:5], "decide")]
        told = [(d.operator, d.index) for d in again]
        wanted = [(d.operator, d.index) for d in expected[:40][::-1] + expected[:5]]
        assert told == wanted

    def test_the_record_says_which_engine(self, organism):
        remote, local = organism
        told = remote.describe()
        assert told["engine"]["name"] == "vllm" and told["engine"]["version"].startswith("0.")
        assert told["engine"]["options"]["block_size"] == BLOCK
        assert (told["dtype"], told["quantisation"]) == ("float32", None)
        assert told["invariant"] == pytest.approx(local.invariant)
        assert told["check"]["readout"] < CLOSE and told["check"]["depths"] < CLOSE
        assert "engine" not in local.describe()

    def test_methods_score_as_here(self, organism):
        remote, local = organism
        encoded = remote.encode([Item("What is", ("a", "b"))])
        few = ["base-mean", "early-exit@0.5", "decisive-only", "trace"]
        found = remote.compare(encoded, resolve(few, remote.facts))
        expected = local.compare(encoded, resolve(few, local.facts))
        for name in few:
            assert np.allclose(found[0][name], expected[0][name], atol=CLOSE)

    def test_a_model_that_is_not_read_right_is_refused_by_name(self, organism):
        remote, local = organism
        side = remote.backend
        shallow = copy(side)
        shallow.facts = side.facts | {"depth": side.depth - 1}  # reads a block too few
        with pytest.raises(UnsupportedModelError, match="vLLM's Odd: .*from vLLM's log-prob"):
            check(shallow, "Odd")
        other = deepcopy(local.backbone.model)
        with torch.no_grad():
            other.model.layers[1].mlp.down_proj.weight.mul_(1.1)
        with pytest.raises(UnsupportedModelError, match="Odd: .*from transformers at some depth"):
            check(side, "Odd", other)

    def test_a_side_that_is_killed_is_replaced_and_the_run_goes_on(self, organism, caplog):
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
    def test_on_the_mix_branch_every_operator_that_is_left_is_reached(self, mixing):
        remote, local = mixing
        items = random_items(3, 60)
        expected = [*local.correct_many(items, "all")]
        assert {d.operator for d in expected} == {"base", "decisive", "mix"}
        assert_same([*remote.correct_many(items, "all")], expected)

    @pytest.mark.parametrize("shared", [BLOCK - 2, BLOCK - 1, BLOCK, 2 * BLOCK - 1, 2 * BLOCK + 1])
    def test_items_that_share_a_prefix_up_to_and_past_a_block(self, mixing, shared):
        remote, local = mixing
        prefix = [3 + i % 300 for i in range(shared)]
        made = [
            Item(text_of([*prefix, *end]), tuple(text_of([9, c, c + 1]) for c in range(10, 13)))
            for end in ([], [7], [7, 8], [50] * 40)
        ]
        # A prompt that holds the first's prompt and its first answer.
        held = Item(text_of([*prefix, 9, 10, 11, 60]), (text_of([70]), text_of([71, 72])))
        items = [*made, held, made[0]]
        expected = [*local.correct_many(items, "all")]
        for _ in range(2):  # cold and warm
            assert_same([*remote.correct_many(items, "all")], expected)

    def test_prompts_that_do_not_fit_beside_each_other(self, mixing):
        remote, local = mixing  # four at a time want 16 blocks of 9: vLLM 0.32 preempts 16 times
        items = [
            Item(
                text_of([3 + (7 * k + i) % 300 for i in range(120)]),
                tuple(text_of([9, c, c + 1]) for c in range(10, 13)),
            )
            for k in range(8)
        ]
        assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])

    def test_rows_inside_a_prefix_that_vllm_kept_are_asked_for_once_more(self, mixing):
        remote, _ = mixing
        ids = [*range(3, 3 + 2 * BLOCK + 5)]
        rows = len(ids)
        request = {"ids": ids, "positions": [*range(rows)], "rows": [*range(rows)]}
        call = remote.backend.process.call
        read = np.arange(rows), np.full(rows, 5), [0, 3], None
        found = []
        for again in (0, 1):
            assert call("compute", [request], rows, [0, 3], "the same") == again
            found.append(call("read", *read)[1])
        cold, warm = found
        assert np.allclose(cold, warm, atol=CLOSE)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Callable[..., tuple[Any, Tracer]]]:
    open_now: list[Any] = []

    def make(family: str, sizes: dict[str, Any], **more: Any) -> tuple[Any, Tracer]:
        made = both(LoadOptions(saved(tmp_path, family, sizes), invariant=2.0), **more)
        open_now.append(made[0])
        return made

    yield make
    for tracer in open_now:
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
    found, expected = (own.pooled(passages, depths) for own in (remote, local))
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    items = random_items(7, 24)
    assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])
    assert remote.describe()["engine"]["options"] == {"enforce_eager": eager}


def test_two_ranks_share_a_model(pair, monkeypatch):
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")  # one machine, without NUMA nodes
    remote, local = pair("llama", LLAMA, ranks=2)
    assert remote.describe()["engine"]["tensor_parallel"] == 2
    items = random_items(6, 24)
    assert_same([*remote.correct_many(items, "all")], [*local.correct_many(items, "all")])
