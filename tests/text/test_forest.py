"""The prefix forest against a trie that is built one token at a time."""

from os.path import commonprefix

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lastword.model.backbone import tiles
from lastword.text.forest import Branch, Forest, build, lay_out, plan, sees

PROPERTY = settings(max_examples=120, derandomize=True)

# Few distinct tokens, so that branches often share prefixes, contain one another or repeat.
tokens = st.sampled_from([0, 1, 2, 255, 256, 70_000])


# Token ids with a boundary. The tests build the branches: shape checks draw from `random`,
# which a strategy may not do.
shapes = st.lists(
    st.lists(tokens, min_size=2, max_size=7).flatmap(
        lambda ids: st.tuples(st.just(tuple(ids)), st.integers(1, len(ids) - 1))
    ),
    min_size=1,
    max_size=9,
)


def branches_of(shape: list[tuple[tuple[int, ...], int]]) -> list[Branch]:
    return [Branch(ids, boundary) for ids, boundary in shape]


def prefixes(branches: list[Branch]) -> set[tuple[int, ...]]:
    return {b.fed[: i + 1] for b in branches for i in range(len(b.fed))}


def spell(forest: Forest, node: int) -> tuple[int, ...]:
    """Return the tokens from the root to a node, from its position and the nodes before it."""
    reverse, position = [], int(forest.positions[node])
    for earlier in range(node, -1, -1):
        if forest.positions[earlier] == position:
            reverse.append(int(forest.tokens[earlier]))
            position -= 1
            if position < 0:
                break
    return tuple(reversed(reverse))


@PROPERTY
@given(shapes)
def test_every_distinct_prefix_is_one_node_followed_by_its_descendants(shape):
    branches = branches_of(shape)
    forest = build(branches)
    spelled = [spell(forest, node) for node in range(len(forest))]
    assert spelled == sorted(prefixes(branches))
    for node, prefix in enumerate(spelled):
        descendants = [i for i, other in enumerate(spelled) if other[: len(prefix)] == prefix]
        assert descendants == list(range(node, int(forest.ends[node])))
        proper = [
            i for i, other in enumerate(spelled) if i != node and prefix[: len(other)] == other
        ]
        assert list(forest.ancestors(node)) == proper


@PROPERTY
@given(shapes, st.none() | st.integers(1, 4))
def test_a_node_sees_itself_and_its_ancestors_within_the_window(shape, window):
    branches = branches_of(shape)
    forest = build(branches)
    nodes = np.arange(len(forest))
    mask = sees(nodes[:, None], nodes, forest.ends, forest.positions, window)
    spelled = [spell(forest, node) for node in nodes]
    for q, prefix in enumerate(spelled):
        for k, other in enumerate(spelled):
            near = window is None or len(prefix) - len(other) < window
            assert mask[q, k] == (prefix[: len(other)] == other and near)


@PROPERTY
@given(shapes)
def test_reads_are_at_the_positions_that_predict_candidate_tokens(shape):
    branches = branches_of(shape)
    forest = build(branches)
    reads = forest.reads
    expected = [
        (place, b.fed[:i], b.tokens[i])
        for place, b in enumerate(branches)
        for i in range(b.boundary, len(b.tokens))
    ]
    predicted = [
        (int(branch), spell(forest, int(reads.rows[row])), int(token))
        for branch, row, token in zip(reads.branch, reads.row, reads.token, strict=True)
    ]
    assert predicted == expected
    assert len(set(reads.rows.tolist())) == len(reads.rows) == len({e[1] for e in expected})


@PROPERTY
@given(shapes)
def test_padded_sequences_are_distinct_and_read_at_the_same_prefixes(shape):
    branches = branches_of(shape)
    padded, reads = lay_out(branches)
    rows, length = padded.shape
    assert rows == len({b.fed for b in branches})
    assert length == max(len(b.fed) for b in branches)
    flat = padded.reshape(-1)
    place = 0
    for number, branch in enumerate(branches):
        for i in range(branch.boundary, len(branch.tokens)):
            row = int(reads.rows[reads.row[place]])
            start = row - row % length
            assert tuple(flat[start : row + 1]) == branch.fed[:i]
            assert (reads.token[place], reads.branch[place]) == (branch.tokens[i], number)
            place += 1
    assert place == len(reads.row)


@PROPERTY
@given(shapes, st.integers(1, 6))
def test_tiles_cover_all_nodes_in_order(shape, size):
    forest = build(branches_of(shape))
    spans = tiles(forest.positions, size)
    assert [node for a, b in spans for node in range(a, b)] == list(range(len(forest)))
    assert all(0 < b - a <= size for a, b in spans)


def plan_reference(items: list[list[list[Branch]]], budget: int) -> list[list[int]]:
    """Return the groups by definition: count the tokens that an item adds to the one before."""

    def fed(item: list[list[Branch]]) -> list[list[tuple[int, ...]]]:
        return [sorted(b.fed for b in prompt) for prompt in item]

    def common(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        return len(commonprefix([a, b]))

    groups: list[list[int]] = []
    load = 0
    last: list[tuple[int, ...]] = [()] * 2
    for i in sorted(range(len(items)), key=lambda i: fed(items[i])[0]):
        alone = sum(len(prefixes(prompt)) for prompt in items[i])
        shared = 0
        for prompt, ids in enumerate(fed(items[i])):
            shared += common(last[prompt], ids[0])
            last[prompt] = ids[-1]
        if groups and load + alone - shared <= budget:
            groups[-1].append(i)
            load += alone - shared
        else:
            groups.append([i])
            load = alone
    return groups


@PROPERTY
@given(st.lists(st.tuples(shapes, shapes), min_size=1, max_size=6), st.integers(1, 60))
def test_plans_agree_with_the_definition(pairs, budget):
    items = [[branches_of(shape) for shape in pair] for pair in pairs]
    assert plan(items, budget) == plan_reference(items, budget)
