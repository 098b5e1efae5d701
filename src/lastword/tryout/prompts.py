"""Prompts: what the model itself answers under other prompts, and with examples in the prompt.

They are raced on rows that no example came from. Who lies behind after a third of the rows drops
out; who is not begun when the time is over is named.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool

from lastword.decide.decision_prompt import DecisionPrompt
from lastword.decide.item import item_of, render
from lastword.decide.templates import DEFAULT, TEMPLATES
from lastword.errors import InputError, ItemError
from lastword.text.prompt_template import Template
from lastword.tryout.labels import Labels

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer

BUDGET = 300.0  # seconds
SHOTS = (4, 8)
SEED = 0
_MOST = 200  # rows a prompt is asked on
_TOGETHER = 16  # rows between two looks at the clock
_BEHIND = 2.0  # standard errors behind the best


@dataclass(frozen=True, eq=False)
class Raced:
    """The model's own answers under another prompt.

    Attributes:
        ids: Of the rows that it was asked on [asked].
        right: Where it was right [asked].
    """

    name: str
    template: Template | DecisionPrompt
    ids: tuple[str, ...]
    right: Bool[np.ndarray, " asked"]


@dataclass(frozen=True)
class Race:
    """Findings of a race.

    Attributes:
        prompts: Those that were asked on enough rows to be judged, the best first.
        left_out: Names of those that were not, each with why.
    """

    prompts: tuple[Raced, ...] = ()
    left_out: tuple[str, ...] = ()


def race(tracer: "Tracer", labels: Labels, template: Template, seconds: float) -> Race:
    """Ask the model itself under other prompts than the one in use."""
    ends = time.perf_counter() + seconds
    chosen = examples(labels, max(SHOTS))
    order = np.random.default_rng(SEED).permutation(len(labels.rows))
    rows = order[~np.isin(order, chosen)][:_MOST]
    if not len(rows):
        return Race()  # all rows are examples
    found, left_out = list[Raced](), list[str]()
    others: list[Template | DecisionPrompt] = [*_others(labels, template, chosen)]
    try:
        if (brought := DecisionPrompt.of(tracer)) is not None:
            others.insert(0, brought)
    except InputError as error:
        left_out.append(f"{DecisionPrompt.name} ({error})")
    for own in others:
        name = own.name.removeprefix("user/")
        right = list[bool]()
        try:
            for answer in _answers(tracer, labels, own, rows.tolist()):
                right.append(answer)
                if time.perf_counter() > ends or _behind(right, len(rows), found):
                    break
        except ItemError:
            left_out.append(f"{name} (does not fit the model's context)")
            continue
        except InputError as error:
            left_out.append(f"{name} ({error})")
            continue
        if len(right) < len(rows) / 3:
            left_out.append(f"{name} (no time)")
        else:
            ids = tuple(labels.rows[place][3] for place in rows[: len(right)])
            found.append(Raced(name, own, ids, np.array(right)))
    return Race(tuple(sorted(found, key=lambda own: -own.right.mean())), tuple(left_out))


def file_of(name: str) -> str:
    """Return the file that a try leaves of a prompt with examples."""
    return f"{name.replace(' ', '-')}.jinja"


def examples(labels: Labels, count: int) -> list[int]:
    """Return the places of rows for examples in a prompt, as many of each class as can be."""
    order = np.random.default_rng(SEED).permutation(len(labels.rows)).tolist()
    seen = Counter[str]()
    rounds = []
    for place in order:
        truth = labels.rows[place][2]
        rounds.append((seen[truth], place))
        seen[truth] += 1
    return [place for _, place in sorted(rounds, key=lambda pair: pair[0])[:count]]


def with_examples(template: Template, labels: Labels, places: Sequence[int]) -> Template:
    """Return a template whose prompts begin with some rows and their labels."""
    shown = "".join(
        f"{render(text, question, template)} {truth}\n\n"
        for text, question, truth, *_ in (labels.rows[place] for place in places)
    )
    text = f"{{{{ {json.dumps(shown, ensure_ascii=False)} }}}}{template.text}"
    return Template(f"user/{len(places)} examples", "1", text)


def _others(labels: Labels, template: Template, chosen: Sequence[int]) -> list[Template]:
    ours = [TEMPLATES[name] for name in (DEFAULT, "decide/listed")]
    shown = [with_examples(template, labels, chosen[:count]) for count in SHOTS]
    return [*(own for own in ours if own != template), *shown]


def _answers(
    tracer: "Tracer", labels: Labels, template: Template | DecisionPrompt, rows: Sequence[int]
) -> Iterator[bool]:
    """Return True where the model is right, per row."""
    for start in range(0, len(rows), _TOGETHER):
        own = [labels.rows[place] for place in rows[start : start + _TOGETHER]]
        if isinstance(template, DecisionPrompt):
            decisions = template.decide(tracer, [(text, question) for text, question, *_ in own])
        else:
            items = [item_of(text, question, template) for text, question, *_ in own]
            decisions = [*tracer.correct_many(items, read="base", blind="none")]
        yield from (d.base_answer == row[2] for d, row in zip(decisions, own, strict=True))


def _behind(right: Sequence[bool], rows: int, found: Sequence[Raced]) -> bool:
    """Return True if a third of the rows shows that a prompt is behind the best."""
    if not found or len(right) != -(-rows // 3):
        return False
    best, own = max(own.right.mean() for own in found), float(np.mean(right))
    return bool(own < best - _BEHIND * np.sqrt(max(own * (1 - own), 0.01) / len(right)))
