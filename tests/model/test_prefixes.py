"""Cached prefixes: same results as without, independent of history, within a budget."""

import copy

import numpy as np
import pytest
import torch
from families import PACKED, build, random_items, tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import by_night

from lastword import Item, Tracer
from lastword.decide.states import LongText
from lastword.model import check
from lastword.model.backbone import Backbone
from lastword.model.prefixes import KeyBlock, PackedRow, Prefixes
from lastword.text.forest import Branch, Forest
from lastword.text.forest import build as grow
from lastword.text.tokens import Passage

SIZE = 4  # tokens per block; prompts here are short
DEPTH = 6


class Counted(Prefixes):
    """Prefixes that count the nodes computed with them."""

    def __init__(self, budget: int = 2**24) -> None:
        super().__init__(budget, SIZE)
        self.nodes = self.computed = 0

    def row(self, forest: Forest, rope: int, depth: int) -> PackedRow:
        row = super().row(forest, rope, depth)
        self.nodes, self.computed = self.nodes + len(forest), self.computed + len(row.nodes)
        return row


def caching_tracer(name: str, attention: str | None = None) -> tuple[Tracer, Counted]:
    """Return a tracer with counted prefixes, and the prefixes."""
    model = build(name)
    if attention is not None:
        model.set_attn_implementation(attention)
    tracer = Tracer(model, tokenizer(), invariant=0.5, prefix_cache=1)
    counted = Counted()
    tracer.backbone.prefixes = counted if tracer.checked.keeps else None
    return tracer, counted


def require_alike(tracer: Tracer, items: list[Item], read: str = "all") -> None:
    """Assert that decisions equal those without the cache."""
    cached = list(tracer.correct_many(items, read=read))
    plain = copy.copy(tracer)
    plain.model = copy.copy(tracer.model)
    plain.model.backbone = tracer.backbone.on(tracer.checked.road)
    for a, b in zip(cached, plain.correct_many(items, read=read), strict=True):
        assert a.trajectory == pytest.approx(b.trajectory, abs=1e-4, nan_ok=True)
        assert (a.index, a.operator) == (b.index, b.operator)


EAGER = ["llama eager", "mistral-sliding eager"]
KINDS = ["llama", "mistral-sliding", "gemma2", "gpt_oss", "deepseek_v3", "gpt2", "phi3-longrope"]


@pytest.mark.parametrize("case", by_night([*PACKED, *EAGER], [*KINDS, *EAGER]))
def test_the_cache_does_not_change_any_family(case):
    name, _, attention = case.partition(" ")
    tracer, prefixes = caching_tracer(name, attention or None)
    items = random_items(3, 3, prompt=(10, 14))  # past every sliding window
    for _ in range(2):  # the second pass fills the cache
        list(tracer.correct_many(items, read="all"))
    require_alike(tracer, items)
    assert tracer.checked.keeps == (tracer.backbone.road == "packed")
    if tracer.checked.keeps:
        assert len(prefixes) > 3 and prefixes.computed < 0.9 * prefixes.nodes


TRACER, _ = caching_tracer("llama")
POOL = [*random_items(1, 5, prompt=(4, 14)), *random_items(2, 5, prompt=(1, 20))]
POOL += [Item(f"{item.prompt} {item.candidates[0]}", item.candidates) for item in POOL[:4]]


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(POOL), min_size=1, max_size=4),
            st.sampled_from(["all", "decide", "base"]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([2**24, 60_000, 20_000, 1]),
)
def test_answers_do_not_depend_on_earlier_requests(requests, budget):
    TRACER.backbone.prefixes = prefixes = Counted(budget)
    for items, read in requests:
        require_alike(TRACER, items, read)
        assert sum(b.bytes for b in prefixes._entries.values()) == prefixes.bytes <= budget


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma2"])
@pytest.mark.parametrize("start", [0, 21, 49])
def test_the_means_of_a_text_that_is_read_in_chunks_are_those_of_one_pass(name, start):
    tracer, prefixes = caching_tracer(name)
    tokens = tuple(np.random.default_rng(0).integers(3, 60, size=50).tolist())
    expected = tracer.pooled([Passage(tokens, start)], [1, 4])[0]
    for evicted in (False, True):
        text = LongText(tokens, start, (1, 4))
        for end in (16, 32, 47, 50):
            text.skip(tracer.backbone)
            text.read(tracer, end)
            if evicted:
                prefixes.clear()
        assert text.means == pytest.approx(expected, abs=1e-5)  # float32
    assert prefixes.computed < 0.9 * prefixes.nodes


def test_the_least_recently_used_and_deepest_blocks_are_evicted_first():
    x = torch.zeros(1, 2, SIZE, 8)
    prefixes = Prefixes(3 * KeyBlock(((x, x),) * DEPTH, DEPTH).bytes, SIZE)
    old, new = branches(tuple(range(10, 21))), branches((7,) * 9)
    assert computed(prefixes, old) == len(grow(old))
    for prompt in (old, new, new):
        computed(prefixes, prompt)
    assert len(prefixes) == 3
    assert computed(prefixes, new) == len(grow(new)) - 2 * SIZE
    assert computed(prefixes, old) == len(grow(old)) - SIZE  # its first block is still cached
    assert computed(prefixes, old) == len(grow(old)) - 2 * SIZE  # now both blocks are
    assert computed(prefixes, new) == len(grow(new)) - SIZE


def test_the_cache_is_cleared_when_memory_runs_out(monkeypatch):
    tracer, prefixes = caching_tracer("llama")
    items = random_items(3, 3, prompt=(10, 14))
    for _ in range(2):
        list(tracer.correct_many(items))
    assert len(prefixes)
    real, calls = Backbone._run, []

    def short(self: Backbone, branches: list[Branch], depths: list[int]):
        calls.append(len(branches))
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        assert len(calls) > 2 or not len(prefixes)
        return real(self, branches, depths)

    monkeypatch.setattr(Backbone, "_run", short)
    assert len(list(tracer.correct_many(items))) == len(items) and len(calls) == 3


def test_only_a_loaded_model_that_passes_the_check_has_a_cache(monkeypatch):
    assert Tracer(build("llama"), tokenizer(), invariant=0.5).backbone.prefixes is None
    assert Tracer.demo().backbone.prefixes.budget == 2**28
    assert Tracer.demo(prefix_cache=0).backbone.prefixes is None
    monkeypatch.setattr(check, "_cached_difference", lambda *_: 1.0)
    tracer = Tracer(build("llama"), tokenizer(), invariant=0.5, prefix_cache=1)
    assert tracer.backbone.road == "packed" and tracer.checked.kept == 1.0
    assert not tracer.checked.keeps and tracer.backbone.prefixes is None


def branches(prompt: tuple[int, ...]) -> list[Branch]:
    """Return two candidates of a prompt."""
    return [Branch(prompt + end, len(prompt)) for end in ((30, 31), (32,))]


def computed(prefixes: Prefixes, some: list[Branch]) -> int:
    """Compute a row as a model would, and return the number of computed nodes."""
    row = prefixes.row(grow(some), 0, DEPTH)
    for _ in range(DEPTH):
        x = torch.zeros(1, 2, len(row.nodes), 8)
        key, _ = row.extend(x, x)
        assert key.shape[2] == len(row.forest)
    prefixes.keep(row, DEPTH)
    return len(row.nodes)
