"""The short of the demo: one repair, one break, and the certificate that tells them apart."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lastword.demo.certificate import certificate, withheld_by
from lastword.demo.outcome import BROKEN, REPAIRED, RULES, Outcome, average
from lastword.records.metrics import fixed_and_broken
from lastword.trust.certify import Finding
from lastword.trust.summary import summary
from lastword.trust.terms import Terms

if TYPE_CHECKING:
    from lastword.tracer import Tracer

CERTIFIED = f"{REPAIRED}, of those that the certificate allows"
WITHHELD = f"{BROKEN}, of those that the certificate does not allow"


@dataclass(frozen=True)
class Effect:
    """The counts of what became of all answers.

    Attributes:
        name: What was done to them.
        right: Share of them that is right.
        fixed: Wrong ones that became right.
        broken: Right ones that became wrong.
    """

    name: str
    right: float
    fixed: int
    broken: int


@dataclass(frozen=True)
class Story:
    """The effect of correction on a model's answers, and what of it a certificate allows.

    Attributes:
        model: Its name.
        items: How many questions there were.
        chance: Share that is right where one answer is drawn of each.
        base: Share that the model answers right by itself.
        corrected: Every correction stands.
        certified: Those stand that the certificate allows.
        finding: What the certificate says.
        lines: The same in words.
        examples: One repair and one break by the rules that chose them.
    """

    model: str
    items: int
    chance: float
    base: float
    corrected: Effect
    certified: Effect
    finding: Finding
    lines: list[str]
    examples: Mapping[str, Outcome]

    @property
    def headline(self) -> str:
        """Both effects in a sentence."""
        all, some = self.corrected, self.certified
        end = f"under its certificate it repaired {some.fixed} and broke {some.broken}"
        if self.finding.chosen is None:
            end = "its certificate keeps it off"
        return f"Correction repaired {all.fixed} answers and broke {all.broken}; {end}"

    @property
    def bars(self) -> list[Effect]:
        """Shares of right answers side by side, from chance on."""
        alone = [Effect("by chance", self.chance, 0, 0), Effect("the model", self.base, 0, 0)]
        return [*alone, self.corrected, self.certified]

    def figures(self) -> dict[str, Any]:
        """The numbers behind it, for programs."""
        return {
            "model": self.model,
            "items": self.items,
            "chance": self.chance,
            "base": self.base,
            "corrected": asdict(self.corrected),
            "certified": asdict(self.certified),
            "certificate": self.lines,
            "examples": {rule: o.item.id for rule, o in self.examples.items()},
        }


def story(tracer: "Tracer", benchmark: str, outcomes: Sequence[Outcome], terms: Terms) -> Story:
    """The story of a model's answers.

    Args:
        tracer: The model.
        benchmark: Where the questions are from.
        outcomes: All its answers.
        terms: What the certificate is to promise.
    """
    finding = certificate(tracer, outcomes, terms)
    model = str(tracer.source["model"])
    stands = [withheld_by(finding, o) is None for o in outcomes]
    return Story(
        model=model,
        items=len(outcomes),
        chance=average(o.chance for o in outcomes),
        base=average(o.mc1_base for o in outcomes),
        corrected=_effect("corrected", outcomes, [True] * len(outcomes)),
        certified=_effect("under the certificate", outcomes, stands),
        finding=finding,
        lines=summary(finding, model, [benchmark], failed=0),
        examples=_examples(outcomes, stands),
    )


def _effect(name: str, outcomes: Sequence[Outcome], stands: Sequence[bool]) -> Effect:
    gains = [o.gain if s else 0.0 for o, s in zip(outcomes, stands, strict=True)]
    right = average(o.mc1_base + gain for o, gain in zip(outcomes, gains, strict=True))
    return Effect(name, right, *fixed_and_broken(gains))


def _examples(outcomes: Sequence[Outcome], stands: Sequence[bool]) -> Mapping[str, Outcome]:
    """The first repair that stands and the first break that does not; else the first of each."""
    firsts: dict[str, Outcome] = {}
    for rule, stricter, stand in ((REPAIRED, CERTIFIED, True), (BROKEN, WITHHELD, False)):
        pairs = [(o, s) for o, s in zip(outcomes, stands, strict=True) if RULES[rule](o)]
        strict = [(stricter, o) for o, s in pairs if s is stand]
        firsts.update((strict or [(rule, o) for o, _ in pairs])[:1])
    return firsts
