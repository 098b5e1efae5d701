"""A Tracer without a model: words are tokens, trajectories come from a hash of the text.

A candidate's scores depend only on its prompt and its text, so batches and order change no
decision. The rule decides. As a script it is a whole evaluation in a process that can be killed:
`python tracer_double.py OUT ITEMS PAUSE`, OUT a folder.
"""

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import lastword
from lastword.decide.batch import Scope
from lastword.errors import ItemError, NonFiniteError, RecordError
from lastword.lab.benchmarks.benchmark import Dataset
from lastword.lab.benchmarks.ready import jsonl
from lastword.methods.contract import Facts
from lastword.methods.trace import trace
from lastword.model.digest import digests
from lastword.records.decision import Decision
from lastword.rule.geometry import Trajectory
from lastword.rule.operators import Ruling
from lastword.rule.router import next_step
from lastword.rule.theta import Theta
from lastword.text.forest import Branch
from lastword.text.items import Item
from lastword.text.tokens import Encoded, EncodedItem


class TracerDouble:
    """What the runner asks of a Tracer.

    Args:
        size: Items in a group of the plan.
        refuse: Ids of items that do not fit the context.
        poison: Ids of items whose logits are not finite.
        invariant: I(M).
        pause: Seconds that a group takes, of which each then prints a line.
        described: Overrides of what `describe` says.
    """

    certificate: Any = None
    chat, source, theta = None, {"model": "double/words"}, Theta()

    def __init__(
        self,
        *,
        size: int = 3,
        refuse: Sequence[str] = (),
        poison: Sequence[str] = (),
        invariant: float = 2.0,
        pause: float | None = None,
        **described: Any,
    ) -> None:
        self.size, self.refuse, self.poison = size, set(refuse), set(poison)
        self.invariant, self.pause, self.described = invariant, pause, described
        self.correction = trace(Facts(9, 100, invariant, self.theta))
        self.groups: list[list[str | None]] = []
        self.tracer, self.scope = self, Scope

    @property
    def digests(self) -> dict[str, str]:
        return digests(self.describe())

    def encode(self, items: Sequence[Item]) -> list[EncodedItem | ItemError]:
        return [self._encode(item) for item in items]

    def _encode(self, item: Item) -> EncodedItem | ItemError:
        if item.id in self.refuse:
            return ItemError("candidate 0 needs 600 tokens and the context is 512", item.id)
        prompt = _words(item.prompt)
        sequences = tuple(prompt + _words(c) for c in item.candidates)
        prompts = Encoded(tuple(Branch(s, len(prompt)) for s in sequences))
        return EncodedItem(item, prompts, None if item.blind_prompt is None else prompts)

    def plan(self, encoded: Sequence[EncodedItem]) -> list[list[int]]:
        # Not the items' order, as the real one's is not.
        order = sorted(range(len(encoded)), key=lambda i: encoded[i].prompt.sequences)
        return [order[i : i + self.size] for i in range(0, len(order), self.size)]

    def decide_group(
        self,
        encoded: Sequence[EncodedItem],
        scope: Scope = Scope(),  # noqa: B008 - frozen
    ) -> list[Decision | NonFiniteError]:
        assert scope.read == "all" and not scope.methods
        self.groups.append([e.item.id for e in encoded])
        if self.pause is not None:
            print("group", flush=True)
            time.sleep(self.pause)
        return [
            NonFiniteError(3) if e.item.id in self.poison else self._decide(e, scope.blind)
            for e in encoded
        ]

    def _decide(self, encoded: EncodedItem, mode: str) -> Decision:
        item = encoded.item
        S = np.array([_scores(item.prompt, c) for c in item.candidates])
        trajectory = Trajectory(S[:, :-1], S[:, -1])
        ruling = next_step(trajectory, self.invariant, self.theta)
        assert isinstance(ruling, Ruling)
        facts: dict[str, Any] = {"invariant": self.invariant, "id": item.id}
        if item.blind_prompt is not None:
            blind = np.array([_scores(item.blind_prompt, c) for c in item.candidates])
            facts["blind_scores"] = blind[:, -2]
            if mode == "all":
                facts |= {"blind_trajectory": blind[:, :-1], "blind_t_scores": blind[:, -1]}
        return Decision.of(ruling, trajectory, item.candidates, **facts)

    def describe(self) -> dict[str, Any]:
        run = {"dtype": "float64", "device": "cpu", "invariant": self.invariant}
        check = {"check": {"road": "packed", "packed": float("nan")}}
        return self.source | run | check | {"theta": self.theta.to_dict()} | self.described


def _words(text: str) -> tuple[int, ...]:
    return tuple(int(hashlib.sha256(w.encode()).hexdigest()[:6], 16) for w in text.split())


def _scores(prompt: str, candidate: str) -> np.ndarray:
    """Depths 0..8 and t: sharp in the middle, flat at the end, so that every operator fires."""
    digest = hashlib.sha256(f"{prompt}\0{candidate}".encode()).digest()
    rng = np.random.default_rng(list(digest))
    depths = rng.normal(-4, 1, 9) + 6 * rng.normal() * np.array([0, 0, 0, 0, 1, 1, 0.5, 0.2, 0])
    depths[-1] = -2.5 + 0.3 * rng.normal()
    return np.minimum(np.append(depths, depths[-1] + rng.normal()), -0.01)


def dataset(folder: Path, count: int = 20, **choice: Any) -> Dataset:
    """Made-up labelled items with 2 to 5 candidates, as a data set."""
    rng, lines = np.random.default_rng(count), []
    for i in range(count):
        words = [f"answer {i} {j}" for j in range(int(rng.integers(2, 6)))]
        truths = [j == i % len(words) for j in range(len(words))]
        question = {
            "id": f"q{i}",
            "prompt": f"Question {i}?\nAnswer:",
            "question": f"Question {i}?",
        }
        lines.append(json.dumps(question | {"candidates": words, "truthful": truths}))
    (path := folder / "made.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return jsonl(path).load(**choice)


def job(folder: Path, count: int = 20, **options: Any) -> tuple[Any, Any]:
    """A double and its evaluation of so many items, which lie in this folder."""
    from lastword.lab.evaluation.work import Work

    folder.mkdir(exist_ok=True)
    data = dataset(folder, count)
    return TracerDouble(**options), Work(data, data.benchmark.template())


@contextmanager
def started(forks: Any, out: object, items: int, pause: float) -> Iterator[Any]:
    """An evaluation in a process of its own, once it is about to write."""
    place = Path(__file__)
    with forks.start("-m", place.stem, out, items, pause, cwd=place.parent) as child:
        assert child.stdout.readline() == "ready\n"
        yield child


def assert_same(path: Any, other: Any) -> None:
    """Records are equal to the bit but for their seconds, and for the folder that they lie in."""
    gone = ["run", "seconds"]
    mine, theirs = (lastword.load_records(place).drop(columns=gone) for place in (path, other))
    assert list(mine.columns) == list(theirs.columns) and len(mine) == len(theirs) > 0
    for name in mine.columns:
        for a, b in zip(mine[name], theirs[name], strict=True):
            np.testing.assert_equal(a, b, err_msg=name)


def main(out: str, items: str, pause: str) -> None:
    from lastword.lab.evaluation.runner import evaluate
    from lastword.records import store

    store.PART_SECONDS = 0.0  # a part per group
    double, work = job(Path(out), int(items), pause=float(pause))
    print("ready", flush=True)
    try:
        evaluate(double, work, Path(out))
    except RecordError as error:
        print(error, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
