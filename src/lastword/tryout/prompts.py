"""Race of other prompts: the model's accuracy with each, and that of a probe with the best.

Some prompts contain examples; rows used as examples are not tested. A prompt that is behind after
a third of the rows is dropped. Prompts for which there was no time are reported.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool

from lastword.decide.decision_prompt import DecisionPrompt
from lastword.decide.item import item_of, render
from lastword.decide.states import read_states
from lastword.decide.templates import DEFAULT, TEMPLATES
from lastword.decide.tracer import Tracer
from lastword.errors import InputError, ItemError
from lastword.probes.state import POOLINGS, can_fit, fit_state
from lastword.text.prompt_template import Template
from lastword.trust.crossfit import cross_fit, random_folds
from lastword.tryout.labels import Labels

BUDGET = 300.0  # seconds
SHOTS = (4, 8)
SEED = 0
WITH_PROBE = " + probe"  # suffix of a prompt's name
_PROBED = 2  # number of prompts with which a probe is fitted
_FOLDS = 5
_MOST = 200  # maximum number of rows per prompt
_TOGETHER = 16  # number of rows between two checks of the time
_BEHIND = 2.0  # standard errors behind the best at which a prompt is dropped


@dataclass(frozen=True, eq=False)
class Raced:
    """Results with another prompt.

    Attributes:
        ids: Rows that were tested [rows].
        right: True where the answer was right [rows].
    """

    name: str
    template: Template | DecisionPrompt
    ids: tuple[str, ...]
    right: Bool[np.ndarray, " rows"]

    @property
    def probe(self) -> bool:
        """True if the answers are those of a cross-validated probe, not the model's."""
        return self.name.endswith(WITH_PROBE)


@dataclass(frozen=True)
class Race:
    """Results of a race.

    Attributes:
        prompts: Prompts that were tested on enough rows, the best first.
        left_out: Names of the other prompts, each with the reason.
    """

    prompts: tuple[Raced, ...] = ()
    left_out: tuple[str, ...] = ()


def race(tracer: Tracer, labels: Labels, template: Template, seconds: float) -> Race:
    """Test the model with prompts other than `template`, and a probe with the best two."""
    ends = time.perf_counter() + seconds
    chosen = examples(labels, max(SHOTS))
    order = np.random.default_rng(SEED).permutation(len(labels.rows))
    rows = order[~np.isin(order, chosen)][:_MOST]
    if not len(rows):
        return Race()  # all rows are examples
    tested = list[Raced]()
    others, left_out = _others(tracer, labels, template, chosen)
    for other in others:
        name = other.name.removeprefix("user/")
        right = list[bool]()
        try:
            for answer in _answers(tracer, labels, other, rows.tolist()):
                right.append(answer)
                if time.perf_counter() > ends or _behind(right, len(rows), tested):
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
            ids = tuple(labels.rows[place].id for place in rows[: len(right)])
            tested.append(Raced(name, other, ids, np.array(right)))
    tested.sort(key=_rank)
    probed = list[Raced]()
    for prompt in tested[:_PROBED]:
        if time.perf_counter() < ends and (one := _with_probe(tracer, labels, prompt)) is not None:
            probed.append(one)
    return Race(tuple(sorted([*tested, *probed], key=_rank)), tuple(left_out))


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


def _rank(prompt: Raced) -> float:
    return -float(prompt.right.mean())


def _with_probe(tracer: Tracer, labels: Labels, prompt: Raced) -> Raced | None:
    """Return the results of a cross-validated probe with a prompt, on the same rows.

    None if options differ by row, a fold has too few labels, or the prompt is not a template.
    """
    template, question = prompt.template, labels.question
    if question is None or not isinstance(template, Template):
        return None
    rows, groups = {row.id: row for row in labels.rows}, labels.groups
    texts, _, truths, *_ = zip(*(rows[id] for id in prompt.ids), strict=True)
    folds = random_folds(np.array([groups[id] for id in prompt.ids]), _FOLDS, SEED)
    if not all(can_fit(np.array(truths)[folds != fold].tolist()) for fold in set(folds)):
        return None
    states = read_states(tracer, texts, question, template, POOLINGS)

    def answer(rest: np.ndarray, tested: np.ndarray) -> dict[str, np.ndarray]:
        places = np.flatnonzero(rest)
        probe = fit_state(states[places], [truths[i] for i in places]).probe
        (block,) = probe.blocks
        rows = states[tested, block.layer, POOLINGS.index(block.pooling)]
        best = probe.scores(rows.astype(np.float64)).argmax(axis=1)
        return {"probe": np.array(probe.classes)[best]}

    right = cross_fit(answer, folds)["probe"] == np.array(truths)
    return replace(prompt, name=prompt.name + WITH_PROBE, right=right)


def file_of(name: str) -> str:
    """Return the name of the file to which a trial writes a prompt with examples."""
    return f"{name.removesuffix(WITH_PROBE).replace(' ', '-')}.jinja"


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
    """Yield True for each row that the model answers right."""
    for start in range(0, len(rows), _TOGETHER):
        some = [labels.rows[place] for place in rows[start : start + _TOGETHER]]
        if isinstance(template, DecisionPrompt):
            decisions = template.decide(tracer, [(text, question) for text, question, *_ in some])
        else:
            items = [item_of(text, question, template) for text, question, *_ in some]
            decisions = [*tracer.correct_many(items, read="base", blind="none")]
        yield from (d.base_answer == row.truth for d, row in zip(decisions, some, strict=True))


def _behind(right: Sequence[bool], rows: int, tested: Sequence[Raced]) -> bool:
    """Return True if a prompt is clearly behind the best after exactly a third of the rows."""
    # Compared once, at a third of the rows: repeated tests would drop good prompts by chance.
    if not tested or len(right) != -(-rows // 3):
        return False
    best, share = max(prompt.right.mean() for prompt in tested), float(np.mean(right))
    return bool(share < best - _BEHIND * np.sqrt(max(share * (1 - share), 0.01) / len(right)))
