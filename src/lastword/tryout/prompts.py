"""Race of other prompts: the model's accuracy with each, within a time.

Some prompts contain examples; rows used as examples are not tested. Prompts for which there was no
time are reported.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from lastword.decide.decision_prompt import DecisionPrompt
from lastword.decide.item import item_of, render
from lastword.decide.templates import DEFAULT, TEMPLATES
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError
from lastword.text.prompt_template import Template
from lastword.tryout.labels import Labels

SHOTS = (4, 8)
SEED = 0
_MOST = 200  # maximum number of rows per prompt
_TOGETHER = 16  # number of rows between two checks of the time


@dataclass(frozen=True, eq=False)
class Raced:
    """Results with another prompt: the rows that were tested, and True for right answers."""

    template: Template | DecisionPrompt
    ids: tuple[str, ...]
    right: Bool[np.ndarray, " rows"]

    @property
    def name(self) -> str:
        """The prompt's name."""
        return self.template.name.removeprefix("user/")


def race(
    tracer: Tracer, labels: Labels, template: Template, seconds: float
) -> tuple[list[Raced], list[str]]:
    """Test the model with prompts other than `template`.

    Returns:
        The prompts that were tested on enough rows, the best first, and the names of the others,
        each with the reason.
    """
    ends = time.perf_counter() + seconds
    chosen = examples(labels, max(SHOTS))
    order = np.random.default_rng(SEED).permutation(len(labels.rows))
    rows = order[~np.isin(order, chosen)][:_MOST].tolist()
    if not rows:
        return [], []  # all rows are examples
    tested = list[Raced]()
    others, left_out = _others(tracer, labels, template, chosen)
    for other in others:
        right, why = list[bool](), "no time"
        try:
            for answer in _answers(tracer, labels, other, rows):
                right.append(answer)
                if time.perf_counter() > ends:
                    break
        except (ItemError, InputError) as error:
            too_long = isinstance(error, ItemError)
            right, why = [], "does not fit the model's context" if too_long else str(error)
        ids = tuple(labels.rows[place].id for place in rows[: len(right)])
        one = Raced(other, ids, np.array(right, dtype=bool))
        if len(right) < len(rows) / 3:
            left_out.append(f"{one.name} ({why})")
        else:
            tested.append(one)
    return sorted(tested, key=lambda one: -one.right.mean()), left_out


def _others(
    tracer: Tracer, labels: Labels, template: Template, chosen: Sequence[int]
) -> tuple[list[Template | DecisionPrompt], list[str]]:
    """Return the other prompts, and those that cannot be used, with the reason."""
    ours = [TEMPLATES[name] for name in (DEFAULT, "decide/listed")]
    others: list[Template | DecisionPrompt] = [one for one in ours if one != template]
    others += [with_examples(template, labels, chosen[:count]) for count in SHOTS]
    try:
        brought = DecisionPrompt.of(tracer)
    except InputError as error:
        return others, [f"{DecisionPrompt.name} ({error})"]
    return others if brought is None else [brought, *others], []


def file_of(name: str) -> str:
    """Return the name of the file to which a trial writes a prompt with examples."""
    return f"{name.replace(' ', '-')}.jinja"


def examples(labels: Labels, count: int) -> list[int]:
    """Return the indices of rows to use as examples, as evenly spread over classes as possible."""
    order = np.random.default_rng(SEED).permutation(len(labels.rows)).tolist()
    counts = Counter[str]()
    rounds = []
    for place in order:
        truth = labels.rows[place].truth
        rounds.append((counts[truth], place))
        counts[truth] += 1
    # The first row of each class, then the second of each, and so on: the sort is stable.
    return [place for _, place in sorted(rounds, key=lambda pair: pair[0])[:count]]


def with_examples(template: Template, labels: Labels, places: Sequence[int]) -> Template:
    """Return a template whose prompts begin with these rows and their labels."""
    shown = "".join(
        f"{render(text, question, template)} {truth}\n\n"
        for text, question, truth, *_ in (labels.rows[place] for place in places)
    )
    # The examples are a string of Jinja, so that braces in a user's text have no effect.
    text = f"{{{{ {json.dumps(shown, ensure_ascii=False)} }}}}{template.text}"
    return Template(f"user/{len(places)} examples", "1", text)


def _answers(
    tracer: Tracer, labels: Labels, template: Template | DecisionPrompt, rows: Sequence[int]
) -> Iterator[bool]:
    for start in range(0, len(rows), _TOGETHER):
        some = [labels.rows[place] for place in rows[start : start + _TOGETHER]]
        if isinstance(template, DecisionPrompt):
            decisions = template.decide(tracer, [(text, question) for text, question, *_ in some])
        else:
            items = [item_of(text, question, template) for text, question, *_ in some]
            decisions = [*tracer.correct_many(items, read="base", blind="none")]
        yield from (d.base_answer == row.truth for d, row in zip(decisions, some, strict=True))
