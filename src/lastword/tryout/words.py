"""Writes the text of a verdict from its figures: headline, sentences and bars."""

from collections.abc import Iterator, Sequence

from lastword.decide.decision_prompt import DecisionPrompt
from lastword.decide.templates import TEMPLATES
from lastword.files.wording import counted, percent, two_digits
from lastword.probes.trajectory import TrajectoryProbe
from lastword.trust.automation import ERRORS
from lastword.trust.policy import is_probe
from lastword.tryout.contest import LARGEST, SIMPLE, WORDS
from lastword.tryout.material import ACCURACY, BALANCED
from lastword.tryout.prompts import file_of
from lastword.tryout.verdict import MODEL, Advice, Standing, Standings, Verdict

_WIDTH = 20  # characters per bar
_WORDS = 12  # of a headline
_MEASURES = {ACCURACY: "accuracy", BALANCED: "mean recall"}


def advise(verdict: Verdict, commands: Sequence[str] = (), first: str = "") -> Advice:
    """Return the text of a verdict; `first` comes before the words about the guarantee."""
    sentences = filter(None, (first, *comparison(verdict.contest), *guarantee(verdict)))
    return Advice(headline(verdict), tuple(shares(verdict)), tuple(sentences), tuple(commands))


def lines(verdict: Verdict, *, verbose: bool = False) -> Iterator[str]:
    """Yield the lines for a terminal: headline, shares, sentences, bars and commands.

    There is a bar for the model, the baselines, the best contestant of each kind, and all with an
    encoder that the user named; with `verbose`, for every contestant.
    """
    advice, share = verdict.advice, verdict.answered.share
    person = "" if share is None else f" ({_sure(verdict)})"
    if share is not None and share < 1:
        person += f"; {percent(1 - share)} go to a person"
    yield f"{advice.headline}{person}."
    for part in (advice.shares, bars(verdict, every=verbose), advice.guarantee, advice.commands):
        yield from ["", *part] if part else []


def headline(verdict: Verdict) -> str:
    """Return one line of at most twelve words: what is answered at which error, or what to use."""
    contest, answered = verdict.contest, verdict.answered
    if answered.share is not None and answered.error is not None:
        share, error = percent(answered.share), percent(answered.error)
        return f"Answers {share} of your texts with at most {error} wrong"
    best, model, simple = contest.line(contest.best), contest.model, contest.simple
    measure, value = _MEASURES[contest.objective], contest.value
    if simple is not None and value(simple) >= value(best):
        best = simple
    elif model is not None and value(best) <= value(model) and verdict.certificate.method is None:
        return f"Nothing is better than the model alone: {measure} {score(model, contest)}"
    uses = [f"Use {name}: {measure}" for name in (in_words(best.name, contest), best.name)]
    return f"{uses[len(uses[0].split()) >= _WORDS]} {score(best, contest)}"


def shares(verdict: Verdict) -> Iterator[str]:
    """Yield a line about the share that is answered at each error, and the way to a proof."""
    answered = verdict.answered
    for one in answered.estimates:
        between = f"{percent(one.low)} to {percent(one.high)}"
        proven = ""
        if answered.error is not None and one.error >= answered.error:
            least = answered.share
            proven = "; nothing is proven" if least is None else f"; proven: {percent(least)}"
        yield (
            f"With {percent(one.error)} wrong: about {percent(one.share)} answered "
            f"(estimate, {between}){proven}"
        )
    if answered.share is not None or not answered.estimates:
        return
    error, ask = answered.error or ERRORS[1], "" if answered.error else " (--error 0.1)"
    if answered.needed is None:
        yield f"No number of labels would probably prove {percent(error)}{ask}."
    else:
        yield (
            f"About {counted(answered.needed, 'fresh label')} would probably prove "
            f"{percent(error)}{ask}, drawn among the texts that would be answered."
        )


def comparison(contest: Standings) -> Iterator[str]:
    """Yield sentences that compare the best contestant with the model, baselines and a cheaper."""
    others = [one for one in (contest.model, contest.simple) if one is not None]
    if others:
        named = [contest.line(contest.best), *others]
        rows = ["" if one.items is None else f" on {counted(one.items, 'row')}" for one in named]
        shown = "; ".join(
            f"{in_words(one.name, contest)} {score(one, contest)}{on}"
            for one, on in zip(named, rows, strict=True)
        )
        yield f"By cross-validation on the same labels: {shown}."
    if contest.model is not None and is_probe(contest.best) and contest.cost is not None:
        yield f"It takes {two_digits(contest.cost)}% of the compute of the model's answer."
    if contest.cheaper is not None:
        named_so, line = in_words(contest.cheaper, contest), contest.line(contest.cheaper)
        saves = f", saves {percent(contest.saves)} of the compute" if contest.saves else ""
        yield f"Within half a standard error: {named_so}, {score(line, contest)}{saves}."


def score(line: Standing, contest: Standings) -> str:
    """Return the figure that a line is ranked by as text: accuracy or mean recall."""
    return percent(contest.value(line))


def _sure(verdict: Verdict) -> str:
    return f"{100 * (1 - verdict.certificate.terms.delta):.10g}% confidence"


def in_words(name: str, contest: Standings) -> str:
    """Return a readable form of a contestant's name, such as `probe@19+minilm:6+model`."""
    if not is_probe(name):
        words = {MODEL: "the model alone", WORDS: "a bag of words"}
        return words.get(name, f"the answer `{contest.constant}`" if name == LARGEST else name)
    if name == TrajectoryProbe.name:
        return "the probe of all layers"
    sources = []
    for part in name.partition("@")[2].split("+"):
        encoder, _, layer = part.rpartition(":")
        of_encoder = f"{encoder}'s layer {layer}" if encoder else f"layer {layer}"
        sources.append("the model" if part == "model" else of_encoder)
    return f"the probe on {' and '.join(sources)}"


def guarantee(verdict: Verdict) -> Iterator[str]:
    """Yield sentences about the certificate, or about the labels that would give one."""
    certificate, contest = verdict.certificate, verdict.contest
    if rivals := certificate.rivals:
        yield (
            f"Warning: a baseline that never reads the text ({' and '.join(rivals)}) would be "
            "certified for the same gain, so this gain does not show that the text was used."
        )
    if contest.model is not None:
        yield from _proof(verdict) if certificate.method is None else _certified(verdict)
    if contest.better_prompt is not None:
        yield _other_prompt(contest.better_prompt)


def _certified(verdict: Verdict) -> Iterator[str]:
    certificate, tested = verdict.certificate, verdict.certificate.tested
    terms = certificate.terms
    least = two_digits(certificate.net_at_least or 0.0)
    points = f"at least {least} points" if certificate.net_at_least else "more than 0 points"
    breaks = f", and at most {percent(terms.alpha)} of all answers are broken"
    yield (
        f"Certified gain over the model: {points} of accuracy"
        f"{breaks if terms.promise == 'breaks' else ''} ({_sure(verdict)}). The certificate "
        f"allows {certificate.policy}."
    )
    if tested is not None:
        yield (
            f"On the {tested.items} labels that tested it: {percent(tested.right)} ({tested.fixed} "
            f"answers fixed, {tested.broken} broken)."
        )


def _proof(verdict: Verdict) -> Iterator[str]:
    certificate, contest, items = verdict.certificate, verdict.contest, verdict.items
    best, model = contest.line(contest.best), contest.line(MODEL)
    if items < (least := certificate.terms.least):
        more = f"{least - items} more than you have"
        yield f"At least {least} labels are needed to certify a gain, {more}."
    elif contest.value(best) > contest.value(model):
        yield "A gain over the model is not proven."


def _other_prompt(prompt: Standing) -> str:
    file = prompt.name if prompt.name in TEMPLATES else f"FOLDER/{file_of(prompt.name)}"
    again = f"run `try` again with --template {file}"
    if prompt.name == DecisionPrompt.name:
        again = 'it is the one of transformers: `pipeline("decision")` or `transformers serve`'
    return (
        f"With the prompt {prompt.name}, the model alone has an accuracy of "
        f"{percent(prompt.right)} ({prompt.fixed} answers fixed and {prompt.broken} broken "
        f"compared with the current prompt on the same rows): {again}."
    )


def bars(verdict: Verdict, *, every: bool = False) -> list[str]:
    """Return a bar per line; those of other prompts are marked, the certified one is last."""
    contest, certified = verdict.contest, verdict.certificate.line
    by_name = {line.name: line for line in contest.lines}
    shown = dict.fromkeys(("chance", *SIMPLE, MODEL, *contest.shown))
    drawn = [by_name[n] for n in (by_name if every else shown) if n in by_name]
    better = contest.better_prompt
    prompts = contest.prompts if every else [better] if better is not None else []
    named = [(line.name, line) for line in drawn]
    named += [(f"{line.name}*", line) for line in prompts]
    named += [] if certified is None else [(certified.name, certified)]
    width = max(len(name) for name, _ in named)
    bars = [_bar(name, line, width) for name, line in named]
    longest, measure = max(map(len, bars)), _MEASURES[contest.objective]
    return [
        bar if line.worth is None else f"{bar:<{longest}}  {measure} {score(line, contest)}"
        for bar, (_, line) in zip(bars, named, strict=True)
    ]


def _bar(name: str, line: Standing, width: int) -> str:
    """Return a bar such as `pmi@0.5   ████████············   61.3%  +56 -1    52.6 to 69.5`."""
    if line.right != line.right:
        return f"{name:<{width}}  does not apply to these examples"
    filled = round(_WIDTH * line.right)
    changes = "" if line.fixed is None else f"+{line.fixed} -{line.broken}"
    interval = "" if line.low == line.high else f"{100 * line.low:.0f} to {100 * line.high:.0f}"
    items = "" if line.items is None else f"  {line.items} rows"
    bar = "█" * filled + "·" * (_WIDTH - filled)
    return (
        f"{name:<{width}}  {bar}  {percent(line.right):>6}  {changes:<9} {interval}{items}".rstrip()
    )
