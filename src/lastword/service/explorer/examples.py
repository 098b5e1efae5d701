"""Worked examples for the explorer: items with a known truth that its page opens on.

Of the models that the demo shows they are the demo's own, the first of their sort in the order of
the benchmark; of any other model they are those of the real one, which may then come out otherwise.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from lastword.benchmarks.demo import items
from lastword.benchmarks.everyday import EVERYDAY
from lastword.demo.outcome import BROKEN, GATED, REPAIRED, STAYS
from lastword.model.embedded import EMBEDDED
from lastword.text.items import Item

# By the demo's rules, on lastword/smollm2-135m and on the organism; the tests find them again.
REAL = {REPAIRED: "pair/010/a", BROKEN: "pair/001/b", STAYS: "plain/001"}
ORGANISM = {
    REPAIRED: "multi/overwritten/seen/000",
    BROKEN: "multi/revised/seen/022",
    GATED: "multi/revised/seen/001",
}
_SAID = {REPAIRED: "repaired", BROKEN: "broken", STAYS: "kept", GATED: "held back by a gate"}


def examples(model: str) -> list[dict[str, Any]]:
    """What the page offers of a model, as plain JSON values.

    Args:
        model: Its name.
    """
    embedded = model.startswith(EMBEDDED)
    items, names = (_world(), ORGANISM) if embedded else (_everyday(), REAL)
    by_id = {str(item.id): item for item in items}
    familiar = model.endswith(("/demo-organism", "smollm2-135m"))
    return [_told(by_id[id], _SAID[rule] if familiar else "") for rule, id in names.items()]


def _told(item: Item, came_out: str) -> dict[str, Any]:
    question = item.question or item.prompt
    return {
        "name": f"{came_out}: {question}" if came_out else question,
        "prompt": item.prompt,
        "candidates": list(item.candidates),
        "truthful": None if item.truthful is None else list(item.truthful),
        "blind_prompt": item.blind_prompt,
    }


@lru_cache
def _world() -> Sequence[Item]:
    return items()


@lru_cache
def _everyday() -> Sequence[Item]:
    return EVERYDAY.load().items(EVERYDAY.template())
