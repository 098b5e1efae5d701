"""Words of a verdict: the headline, the sentences below it, and the picture, from its figures."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from lastword.decide.templates import TEMPLATES
from lastword.files.shorten import counted
from lastword.probes.trajectory import TrajectoryProbe
from lastword.trust.policy import METHODS, SELF_TAUGHT
from lastword.trust.slices import LEAST_OF_CLASS
from lastword.tryout.contest import LARGEST, WORDS
from lastword.tryout.prompts import file_of

if TYPE_CHECKING:
    from lastword.tryout.verdict import Line, Verdict

_WIDTH = 20  # of a bar
_NAMED = 5  # confusions, and answers made wrong, that words name
_CLASSES = 12  # that lines name
_LEARNS = 0.02  # share right that the second half of the labels adds to a probe that still learns
_FREE = 0.005  # of the model's own answer: what costs less costs next to nothing
_RECALL = "found of each class"


def headline(verdict: "Verdict") -> str:
    """Return what to run, what it gains and what it costs, in one sentence."""
    model = verdict.line("the model")
    where = f"right where the model gets {percent(model.right)}"
    simple = _simple(verdict)
    if verdict.certified is not None:
        name = str(verdict.method)
        own = verdict.line(name)
        if simple is not None and simple.right >= own.right:
            return _instead(simple, where, verdict)
        what = in_words(name) if name == verdict.probe else name
        least = f"at least {100 * (verdict.net_at_least or 0):+.0f} points"
        sure = f"{percent(1 - verdict.delta)} confidence"
        cost = _cost(verdict.cost if name == verdict.probe else 1.0)
        return f"Use {what}: {percent(own.right)} {where}, {least} with {sure}; it costs {cost}."
    beaten = max(model.right, verdict.line("chance").right)
    if simple is not None and simple.low > beaten:
        if simple.right >= verdict.line(str(verdict.probe)).right:
            return _instead(simple, where, verdict)
    more = ""
    if verdict.useless:
        more = (
            " The model by itself is at chance here: describe the labels (--describe), or try a "
            "larger model."
        )
        if (prompt := verdict.prompt) is not None:
            more = f" With {prompt.name} the model by itself gets {percent(prompt.right)}."
    best = max((own for own in verdict.lines if own.fixed is not None), key=lambda own: own.right)
    return (
        f"Nothing here is shown to beat the model, which is right on {percent(model.right)}; "
        f"{best.name} gets {percent(best.right)} on these labels.{more}"
    )


def _simple(verdict: "Verdict") -> "Line | None":
    """What needs no model and is right most often; of equals the largest class."""
    lines = {own.name: own for own in verdict.lines}
    there = [lines[name] for name in (LARGEST, WORDS) if name in lines]
    return max(there, key=lambda own: own.right, default=None)


def _instead(simple: "Line", where: str, verdict: "Verdict") -> str:
    what = "Use a bag of words"
    if simple.name == LARGEST:
        what = f"Answer `{max(verdict.classes, key=lambda own: own.items).label}` always"
    return f"{what}: {percent(simple.right)} {where}; you need no model for this."


def _cost(answers: float | None) -> str:
    if answers is None or answers == 1.0:
        return "what the model's own answer costs"
    return "next to nothing" if answers < _FREE else f"{answers:.2g} of the model's own answer"


def in_words(name: str) -> str:
    """Return `probe@19`, `probe@19+model` or `probe@trajectory` as people say it."""
    if name == TrajectoryProbe.name:
        return "the probe of all depths"
    kind, _, rest = name.partition("@")
    depth, _, model = rest.partition("+")
    taught = "self-taught " if kind == SELF_TAUGHT else ""
    return f"the {taught}probe of depth {depth}{' stacked with the model' if model else ''}"


def words(verdict: "Verdict") -> list[str]:
    """Say what follows from the figures: whether the model is of use, and what to do."""
    sentences = [verdict.headline] if verdict.headline else []
    return [*sentences, *(each for own in _SENTENCES for each in own(verdict))]


def _beware(verdict: "Verdict") -> Iterator[str]:
    if verdict.rivals:
        yield (
            f"Beware: {' and '.join(verdict.rivals)}, which never reads the text, would be "
            "certified for as much."
        )


def _advice(verdict: "Verdict") -> Iterator[str]:
    by_probe = verdict.method is not None and verdict.method == verdict.probe
    if verdict.certified is not None and not by_probe:
        least = verdict.net_at_least
        gain = f"at least {100 * least:.2g} points more right" if least else "more right"
        breaks = f", at most {percent(verdict.alpha)} of all answers broken"
        yield (
            f"Switch it on: {verdict.let_through}; {gain} than the model by itself"
            f"{breaks if verdict.promise == 'breaks' else ''}, with {percent(1 - verdict.delta)} "
            "confidence."
        )
    if by_probe and (own := verdict.tested) is not None:
        yield (
            f"The promise rests on the {own.items} labels that did not make the probe: "
            f"{percent(own.right)} right, {own.fixed} fixed and {own.broken} broken. The share "
            "above is of all labels, each answered by a fit to four fifths of them."
        )
    if verdict.certified is not None or verdict.useless:
        return
    if verdict.items < verdict.least:
        yield (
            f"Label at least {verdict.least - verdict.items} more: with fewer than "
            f"{verdict.least} nothing can be certified, even where nothing breaks."
        )
    elif verdict.needed is not None:
        yield (
            f"Label {verdict.needed - verdict.items} more: about {verdict.needed} would certify "
            "it if the rates stay."
        )
    else:
        little = " and to break so little" if verdict.promise == "breaks" else ""
        yield f"Keep it off: no correction can be promised to gain{little}."


def _table(verdict: "Verdict") -> Iterator[str]:
    if verdict.table:
        yield f"About the table: {'; '.join(verdict.table)}."


def _sets(verdict: "Verdict") -> Iterator[str]:
    if verdict.sets is not None:
        yield verdict.sets.words()


def _forecast(verdict: "Verdict") -> Iterator[str]:
    if len(verdict.curve) > 1:
        known = ", ".join(f"{percent(right)} of {count}" for count, right in verdict.curve)
        more = verdict.curve[-1][1] - verdict.curve[-2][1]
        learns = "is still learning" if more > _LEARNS else "learns little from more labels"
        yield f"A probe gets {known} labels (leave-one-out): it {learns}."


def _best(verdict: "Verdict") -> Iterator[str]:
    best = verdict.line(verdict.best)
    more = best.right - verdict.line("the model").right
    if more <= 0:
        yield "None of the corrections gains on these labels."
        return
    assert best.p is not None
    p = min(1.0, best.p * len(METHODS))
    sure = "more than chance" if p < 0.05 else "no more than chance may do"
    yield (
        f"Of the corrections {best.name} gains most: {100 * more:+.1f} points, {best.fixed} fixed "
        f"and {best.broken} broken ({sure}: p = {p:.2g}, corrected for {len(METHODS)} tried)."
    )


def _prompts(verdict: "Verdict") -> Iterator[str]:
    if (own := verdict.prompt) is not None:
        how = f"run it again with --template {own.name}"
        if own.name not in TEMPLATES:
            how = f"`lastword decide --template FOLDER/{file_of(own.name)}` asks so"
        gain = f"{own.fixed} fixed and {own.broken} broken on the same rows"
        share = f"With {own.name} the model by itself is right on {percent(own.right)}"
        yield f"{share} ({gain}): {how}."
    if asked := [f"{own.name} {own.items}" for own in verdict.raced]:
        yield (
            f"Prompts with a * were asked on some of the {verdict.items} rows: {', '.join(asked)}; "
            "never on a row that is an example, and no further where they fell behind."
        )
    if verdict.not_raced:
        yield f"Not asked: {', '.join(verdict.not_raced)}."


def _depths(verdict: "Verdict") -> Iterator[str]:
    if verdict.by_depth:
        head, probe = np.array(verdict.by_depth).T
        best = int(probe.argmax())
        yield (
            f"What each depth knows: a probe of depth {best} gets {percent(probe[best])} right, "
            f"one of the last depth {percent(probe[-1])} (leave-one-out on all labels; the best "
            "of many looks better than it is); through the model's own head the best depth is "
            f"{int(head.argmax())}, with {percent(head.max())}."
        )


def _classes(verdict: "Verdict") -> Iterator[str]:
    if not verdict.classes:
        return
    before, after = map(percent, verdict.macro)
    yield f"By class (macro recall): {before}, with {shown(verdict)} {after}."
    if sure := [own for own in verdict.classes if own.at_least is not None]:
        found = ", ".join(f"`{own.label}` {percent(own.at_least or 0.0)}" for own in sure)
        yield (
            f"Found of a class at least, all at once with {percent(1 - verdict.delta)} confidence: "
            f"{found}. A class with fewer than {LEAST_OF_CLASS} labels to test by has no such "
            "promise."
        )
    if hurt := [own for own in verdict.classes if own.corrected < own.model and own.p < 0.05]:
        names = ", ".join(
            f"`{own.label}` ({percent(own.model)} to {percent(own.corrected)})" for own in hurt
        )
        yield f"{shown(verdict)} hurts {names}."


def _confusions(verdict: "Verdict") -> Iterator[str]:
    if verdict.confusions:
        named = [f"`{answer}` for `{truth}` ({n})" for truth, answer, n in verdict.confusions]
        yield f"The model's most frequent mistakes: {', '.join(named)}."


def _changed(verdict: "Verdict") -> Iterator[str]:
    if not verdict.changes:
        return
    lost = [own for own in verdict.changes if own.model == own.truth]
    names = ", ".join(f"{own.id} (`{own.truth}` to `{own.shown}`)" for own in lost[:_NAMED])
    more = f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else ""
    which = f", {len(lost)} of them right ones: row {names}{more}" if lost else ""
    what = "What is certified" if verdict.shown == "certified" else verdict.shown
    yield f"{what} changes {counted(len(verdict.changes), 'answer')}{which}."


def _middle(verdict: "Verdict") -> Iterator[str]:
    if (middle := verdict.middle) is not None and not verdict.by_depth:
        says = "add something to" if middle.positive else "may add nothing to"
        yield (
            f"Earlier depths {says} the last one: a fit to these labels that sees them too fixes "
            f"{counted(middle.fixed, 'answer')} and breaks {middle.broken} (p = {middle.p:.2g})."
        )


_SENTENCES: tuple[Callable[["Verdict"], Iterator[str]], ...] = (
    *(_beware, _advice, _table, _sets, _forecast, _best, _prompts, _depths),
    *(_classes, _confusions, _changed, _middle),
)


def picture(verdict: "Verdict") -> list[str]:
    """Return a bar a line, what it fixes and breaks, and its interval."""
    raced = [(f"{own.name}*", own) for own in verdict.raced]
    certified = [] if verdict.certified is None else [verdict.certified]
    named = [*((own.name, own) for own in verdict.lines), *raced]
    named += [(own.name, own) for own in certified]
    width = max(len(name) for name, _ in named)
    return [_bar(name, own, width) for name, own in named]


def by_class(verdict: "Verdict") -> list[str]:
    """Return a line a label: how much of it is found; the most frequent of many."""
    often = sorted(verdict.classes, key=lambda own: -own.items)[:_CLASSES]
    if not often:
        return []
    width = max(len(_RECALL), *(len(own.label) + 2 for own in often))
    more = len(verdict.classes) - len(often)
    return [
        f"{_RECALL:<{width}}    of   model to {shown(verdict)}",
        *(
            f"{f'`{own.label}`':<{width}}  {own.items:>4}  {percent(own.model):>6} to "
            f"{percent(own.corrected)}"
            for own in often
        ),
        *([f"and {more} more"] if more else []),
    ]


def shown(verdict: "Verdict") -> str:
    """Return the name of what classes and changes are of."""
    return str(verdict.method) if verdict.shown == "certified" else verdict.shown


def _bar(name: str, line: "Line", width: int) -> str:
    """`pmi@0.5   ████████············   61.3%  +56 -1    52.6 to 69.5`."""
    if line.right != line.right:
        return f"{name:<{width}}  does not apply to these examples"
    filled = round(_WIDTH * line.right)
    changes = "" if line.fixed is None else f"+{line.fixed} -{line.broken}"
    interval = "" if line.low == line.high else f"{100 * line.low:.0f} to {100 * line.high:.0f}"
    bar = "█" * filled + "·" * (_WIDTH - filled)
    return f"{name:<{width}}  {bar}  {percent(line.right):>6}  {changes:<9} {interval}".rstrip()


def percent(share: float) -> str:
    """`61.3%`; a dash where there is none."""
    return "–" if share != share else f"{100 * share:.1f}%".replace(".0%", "%")
