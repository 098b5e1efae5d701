"""Writes the text of a verdict from its figures: headline, sentences and bars."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lastword.decide.decision_prompt import DecisionPrompt
from lastword.decide.templates import TEMPLATES
from lastword.files.wording import percent
from lastword.probes.trajectory import TrajectoryProbe
from lastword.trust.policy import is_probe
from lastword.tryout.material import LARGEST, SIMPLE
from lastword.tryout.prompts import WITH_PROBE, file_of
from lastword.tryout.verdict import ACCURACY, BALANCED, Advice, Standing, Standings, Verdict

_WIDTH = 20  # characters per bar
_FREE = 0.005  # share of the model's compute below which a cost is called negligible
_FEW_OF_CLASS = 5  # a class with fewer rows is not reported as the weakest
_MEASURES = {ACCURACY: "accuracy", BALANCED: "mean recall"}


def advise(verdict: Verdict, commands: Sequence[str] = ()) -> Advice:
    """Return the text of a verdict; `commands` are the commands that use its result."""
    advice = Advice(headline(verdict), tuple(guarantee(verdict)), tuple(commands))
    return replace(advice, text="\n".join(lines(replace(verdict, advice=advice), verbose=True)))


def lines(verdict: Verdict, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal: headline, bars, guarantee and commands.

    There is a bar for the model, the baselines and the best contestant of each kind; with
    `verbose`, for every contestant.
    """
    advice = verdict.advice
    yield from (advice.headline, "", *bars(verdict, every=verbose))
    for part in (advice.guarantee, advice.commands):
        yield from ["", *part] if part else []


@dataclass(frozen=True)
class _Compared:
    """The best contestant, the model and the baselines on the same labels."""

    best: Standing
    model: Standing
    simple: Standing | None
    held_out: int | None = None

    def others(self, verdict: Verdict) -> str:
        """Return the model's figure, preceded by that of a baseline if it is better."""
        contest, simple = verdict.contest, self.simple
        others = f"model alone: {score(self.model, contest)}"
        if simple is None or contest.value(simple) <= contest.value(self.model):
            return others
        return f"{_baseline(simple, verdict, 'always')}: {score(simple, contest)}; {others}"


def headline(verdict: Verdict) -> str:
    """Return the headline: the method to run with gain and cost, or the most promising one."""
    contest, certificate = verdict.contest, verdict.certificate
    proven, beaten = certificate.method is not None, certificate.over_baselines is not None
    crossed = _crossed(verdict)
    # A baseline without a model is recommended if it is as good as the best contestant and no gain
    # over it is certified. If nothing is certified, it also has to beat the model and chance.
    if (simple := crossed.simple) is not None and simple.name == contest.simple and not beaten:
        least = simple.low if simple.worth is None else simple.worth
        if proven or least > max(contest.value(crossed.model), contest.line("chance").right):
            return _no_model(crossed, simple, verdict)
    if not proven:
        return _likely(crossed, verdict)
    # Probe and baselines were fitted to one half of the labels: compare them on the other half.
    on = _held_out(verdict) or crossed
    value = contest.value
    if (simple := on.simple) is not None and value(simple) >= value(on.best) and not beaten:
        return _no_model(on, simple, verdict)
    labels = "" if on.held_out is None else f" on {on.held_out} held-out labels"
    cost = _cost(contest.cost if is_probe(contest.best) else 1.0)
    return (
        f"Use {in_words(contest.best)}: {_MEASURES[contest.objective]} "
        f"{score(on.best, contest)}{labels} "
        f"({on.others(verdict)}); {_certified_gain(on, verdict)}. {cost}"
    )


def _crossed(verdict: Verdict) -> _Compared:
    """Return the comparison on all labels, by cross-validation."""
    contest = verdict.contest
    lines = {line.name: line for line in contest.lines}
    baselines = [lines[name] for name in SIMPLE if name in lines]
    simple = max(baselines, key=contest.value, default=None)  # the first on ties
    return _Compared(contest.line(contest.best), contest.model, simple)


def _held_out(verdict: Verdict) -> _Compared | None:
    """Return the comparison on the labels that test a certified probe.

    None for a correction, and if mean recall counts, because these standings hold only counts.
    """
    certificate = verdict.certificate
    probe = is_probe(certificate.method or "") and verdict.contest.objective == ACCURACY
    if certificate.tested is None or not probe:
        return None
    model, *baselines = certificate.baselines
    simple = max(baselines, key=lambda line: line.right, default=None)
    return _Compared(certificate.tested, model, simple, certificate.tested.items)


def _no_model(on: _Compared, simple: Standing, verdict: Verdict) -> str:
    contest = verdict.contest
    return (
        f"{_baseline(simple, verdict, 'Always answer', 'Use a ')}: "
        f"{_MEASURES[contest.objective]} {score(simple, contest)} "
        f"({in_words(contest.best)}: {score(on.best, contest)}; "
        f"model alone: {score(on.model, contest)}). You need no model for this."
    )


def _likely(on: _Compared, verdict: Verdict) -> str:
    contest, name = verdict.contest, in_words(verdict.contest.best)
    measure = _MEASURES[contest.objective]
    if contest.value(on.best) <= contest.value(on.model):
        first = (
            f"Nothing here is better than the model alone ({measure} {score(on.model, contest)})."
        )
    else:
        first = (
            f"{name.replace('the ', 'The ', 1)} looks better ({measure} {score(on.best, contest)}, "
            f"{on.others(verdict)}), but {verdict.table.items} labels are not enough to prove it."
        )
    if not contest.useless:
        return first
    if (prompt := contest.better_prompt) is None:
        return (
            f"{first} The model alone is at chance: describe the labels (--describe), or try a "
            "larger model."
        )
    return (
        f"{first} The model alone is at chance, but has an accuracy of {percent(prompt.right)} "
        f"with the prompt {prompt.name}."
    )


def _certified_gain(on: _Compared, verdict: Verdict) -> str:
    """Return the gain over the stronger of model and best baseline, and that over the model."""
    certificate, simple = verdict.certificate, on.simple
    sure = f"with {percent(1 - certificate.delta)} confidence"
    contest = verdict.contest
    over_model = gain(certificate.net_at_least, contest)
    compared = len(certificate.baselines) > 1
    if simple is None or not compared or contest.value(simple) <= contest.value(on.model):
        return f"certified gain: {over_model} {sure}"
    name = _baseline(simple, verdict, "always answering", "a ")
    if certificate.over_baselines is None:
        return f"certified to beat the model {sure}, but not to beat {name}"
    over = gain(certificate.over_baselines, contest)
    return f"certified gain: {over} over {name}, and {over_model} over the model, each {sure}"


def _baseline(simple: Standing, verdict: Verdict, always: str, article: str = "") -> str:
    """Return a baseline in words: `always` and the constant answer, or its name."""
    contest = verdict.contest
    if simple.name != LARGEST:
        return f"{article}{simple.name}"
    label = contest.constant
    if label is None:
        label = max(contest.classes, key=lambda one: one.items).label
    return f"{always} `{label}`"


def score(line: Standing, contest: Standings) -> str:
    """Return the figure that a line is ranked by as text: accuracy or mean recall."""
    return percent(contest.value(line))


def gain(least: float | None, contest: Standings) -> str:
    """Return a bound as text, such as `at least 9.2 points`; 0 becomes `more than 0`."""
    of = "" if contest.objective == ACCURACY else " of accuracy"
    return f"{f'at least {_points(least)}' if least else 'more than 0 points'}{of}"


def _points(share: float) -> str:
    return "1 point" if f"{100 * share:.2g}" == "1" else f"{100 * share:.2g} points"


def _cost(answers: float | None) -> str:
    if answers is None:
        return "It reads every layer, with the text and without."
    if answers == 1.0:
        return "It takes as much compute as the model's answer."
    if answers < _FREE:
        return "It takes next to no compute."
    if answers > 1:
        return f"It takes {answers:.2g} times the model's compute."
    return f"It takes {100 * answers:.2g}% of the model's compute."


def in_words(name: str) -> str:
    """Return a readable form of a probe's name, such as `probe@19+minilm:6+model`."""
    if not is_probe(name):
        return name
    if name == TrajectoryProbe.name:
        return "the probe of all layers"
    sources = []
    for part in name.partition("@")[2].split("+"):
        reader, _, layer = part.rpartition(":")
        of_reader = f"layer {layer} of {reader}" if reader else f"layer {layer}"
        sources.append("the model" if part == "model" else of_reader)
    first, *others = sources
    return f"the probe on {first}" + (f" combined with {' and '.join(others)}" if others else "")


def guarantee(verdict: Verdict) -> Iterator[str]:
    """Yield sentences about the certificate, or about the labels that would give one."""
    certificate, contest = verdict.certificate, verdict.contest
    if rivals := certificate.rivals:
        yield (
            f"Warning: a baseline that never reads the text ({' and '.join(rivals)}) would be "
            "certified for the same gain, so this gain does not show that the text was used."
        )
    yield from _proof(verdict) if certificate.method is None else _certified(verdict)
    classes = [one for one in contest.classes if one.items >= _FEW_OF_CLASS]
    worst = min(classes, key=lambda one: one.corrected, default=None)
    if worst is not None and worst.corrected < 0.5 < contest.line(contest.best).right:
        yield (
            f"The weakest class is `{worst.label}`: {contest.best} finds "
            f"{percent(worst.corrected)} of its {worst.items} rows."
        )
    for prompt in (contest.better_prompt, contest.better_probe):
        if prompt is not None:
            yield _other_prompt(prompt, contest)


def _certified(verdict: Verdict) -> Iterator[str]:
    certificate, contest, tested = verdict.certificate, verdict.contest, verdict.certificate.tested
    sure = f"{percent(1 - certificate.delta)} confidence"
    if is_probe(certificate.method or "") and tested is not None:
        yield (
            f"The guarantee is based on the {tested.items} labels held out from the probe: its "
            f"accuracy there is {percent(tested.right)} ({tested.fixed} answers corrected, "
            f"{tested.broken} broken). The accuracy in the chart is from 5-fold cross-validation "
            "on all labels."
        )
    elif certificate.policy is not None:
        breaks = f", and at most {percent(certificate.alpha)} of all answers are broken"
        yield (
            f"The certificate allows {certificate.policy}. Guaranteed with {sure}: accuracy rises "
            f"by {gain(certificate.net_at_least, contest)}"
            f"{breaks if certificate.promise == 'breaks' else ''}."
        )
    if baselines := certificate.baselines[1:]:
        least = certificate.over_baselines
        over = "not certified" if least is None else gain(least, contest)
        figures = ", ".join(f"{line.name} {percent(line.right)}" for line in baselines)
        yield (
            f"Gain over the model: {gain(certificate.net_at_least, contest)}. Gain over the best "
            f"baseline: {over} (accuracy: {figures} on the same labels). Each bound holds with "
            f"{sure}."
        )
    if certificate.line is not None and contest.objective == BALANCED:
        yield (
            "The certificate is about accuracy. Mean recall is an estimate by cross-validation: "
            f"{score(contest.model, contest)} → {score(certificate.line, contest)}."
        )


def _proof(verdict: Verdict) -> Iterator[str]:
    """Yield sentences about the labels that would prove the best contestant's gain."""
    certificate, contest, items = verdict.certificate, verdict.contest, verdict.table.items
    best = contest.best
    if items < certificate.least:
        yield (
            f"At least {certificate.least} labels are needed to certify anything, "
            f"{certificate.least - items} more than you have."
        )
    elif contest.value(contest.line(best)) <= contest.value(contest.model):
        yield from () if contest.useless else ["Keep the model as it is."]
    elif contest.objective != ACCURACY and contest.probe is None:
        yield "There are too few labels to fit a probe: label more rows."
    elif (needed := certificate.needed) is not None:
        yield (
            f"About {needed} labels would be enough to certify {in_words(best)}, "
            f"{needed - items} more than you have, if the rates stay the same."
        )
    else:
        little = " and breaks so little" if certificate.promise == "breaks" else ""
        yield (
            f"No number of labels would show that {in_words(best)} gains{little} if the rates stay "
            "the same."
        )


def _other_prompt(prompt: Standing, contest: Standings) -> str:
    """Return a sentence about a prompt with which the model, or a probe, is better."""
    name = prompt.name.removesuffix(WITH_PROBE)
    probe = name != prompt.name
    file = name if name in TEMPLATES else f"FOLDER/{file_of(name)}"
    again = f"run `try` again with --template {file}"
    if name == DecisionPrompt.name:
        again = 'it is the one of transformers: `pipeline("decision")` or `transformers serve`'
    return (
        f"With the prompt {name}, {'a probe' if probe else 'the model alone'} has an accuracy of "
        f"{percent(prompt.right)} ({prompt.fixed} answers corrected and {prompt.broken} broken "
        f"compared with {contest.best if probe else 'the current prompt'} on the same rows): "
        f"{again}."
    )


def bars(verdict: Verdict, *, every: bool = False) -> list[str]:
    """Return a bar per line; those of other prompts are marked, the certified one is last."""
    contest, certified, best = verdict.contest, verdict.certificate.line, verdict.contest.best
    by_name = {line.name: line for line in contest.lines}
    names = ("chance", *SIMPLE, "the model", contest.correction, contest.probe, best)
    shown = by_name if every else [name for name in dict.fromkeys(names) if name in by_name]
    better = contest.better_prompt
    prompts = contest.prompts if every else [better] if better is not None else []
    named = [(name, by_name[name or ""]) for name in shown]
    named += [(f"{line.name}*", line) for line in prompts]
    named += [] if certified is None else [(certified.name, certified)]
    width = max(len(name or "") for name, _ in named)
    rows = [(_bar(name or "", line, width), line) for name, line in named]
    if contest.objective == ACCURACY:
        return [bar for bar, _ in rows]
    measure, longest = _MEASURES[contest.objective], max(len(bar) for bar, _ in rows)
    return [
        bar if line.worth is None else f"{bar:<{longest}}  {measure} {score(line, contest)}"
        for bar, line in rows
    ]


def _bar(name: str, line: Standing, width: int) -> str:
    """Return a bar such as `pmi@0.5   ████████············   61.3%  +56 -1    52.6 to 69.5`."""
    if line.right != line.right:
        return f"{name:<{width}}  does not apply to these examples"
    filled = round(_WIDTH * line.right)
    changes = "" if line.fixed is None else f"+{line.fixed} -{line.broken}"
    interval = "" if line.low == line.high else f"{100 * line.low:.0f} to {100 * line.high:.0f}"
    bar = "█" * filled + "·" * (_WIDTH - filled)
    return f"{name:<{width}}  {bar}  {percent(line.right):>6}  {changes:<9} {interval}".rstrip()
