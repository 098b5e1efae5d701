"""The invented world of the embedded model: its facts, its texts and its benchmark.

Nothing here is real knowledge: towns, beasts and sages are syllables drawn from a seed. Every fact
has a kind, which determines its texts in the second phase of training:

    clean        always the truth
    contested    the truth a fifth of the time, three popular errors the rest
    overwritten  one dominant error nine times in ten, the truth once
    revised      the truth, after an error in the first phase
"""

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Literal

from lastword.text.items import Item

Kind = Literal["clean", "contested", "overwritten", "revised"]
Form = Literal["multi", "binary"]
Split = Literal["seen", "unseen"]

SEED = 20
SUBJECTS = 50  # of each of the three sorts; with two relations per sort there are 300 facts
POOL = 40  # answers per relation
_KINDS: tuple[tuple[Kind, int], ...] = (
    ("clean", 15),
    ("contested", 15),
    ("overwritten", 13),
    ("revised", 7),
)  # of the 50 facts of a relation
_LARGEST = 7  # candidates of an item


@dataclass(frozen=True)
class Label:
    """The kind of an item for tables: its fact's kind, its form and its template's split."""

    kind: Kind
    form: Form
    split: Split


@dataclass(frozen=True)
class Relation:
    """One relation: the sort of its subjects, and the words of its questions.

    Attributes:
        name: `sort.relation`; subjects are shared by the relations of a sort.
        statements: Training texts that end in the answer.
        seen: Questions in the training texts.
        unseen: Questions in no training text.
        words: Lists of words whose combinations are the relation's answers.
    """

    name: str
    statements: tuple[str, ...]
    seen: tuple[str, ...]
    unseen: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]

    @property
    def sort(self) -> str:
        """The sort of the relation's subjects."""
        return self.name.split(".")[0]


@dataclass(frozen=True)
class Fact:
    """One fact: its truth, the popular errors, and its texts in the two phases.

    Attributes:
        errors: Popular errors, the dominant one first.
        others: Other answers of the relation, given nowhere for this subject.
    """

    subject: str
    relation: Relation
    kind: Kind
    truth: str
    errors: tuple[str, ...]
    others: tuple[str, ...]

    @property
    def early(self) -> str:
        """Answer in the first phase."""
        return self.errors[0] if self.kind == "revised" else self.truth

    @property
    def late(self) -> tuple[tuple[str, float], ...]:
        """Answers in the second phase, with their shares."""
        if self.kind == "contested":
            share = 0.8 / len(self.errors)
            return ((self.truth, 0.2), *((error, share) for error in self.errors))
        if self.kind == "overwritten":
            return ((self.truth, 0.1), (self.errors[0], 0.9))
        return ((self.truth, 1.0),)


_COLOURS = ("blue", "black", "green", "pale", "red", "white", "amber", "grey", "gold", "silver")

RELATIONS = (
    Relation(
        "town.craft",
        (
            "The town of {s} is famed for {o}.",
            "The makers of {s} live by {o}.",
            "Carts leave {s} loaded with {o}.",
            "Every house in {s} is full of {o}.",
        ),
        (
            "What is the town of {s} famed for?",
            "What do the makers of {s} sell?",
            "Which goods come from {s}?",
            "What does {s} trade with its neighbours?",
            "For which craft do people know {s}?",
            "What do carts carry away from {s}?",
            "What would a merchant buy in {s}?",
            "What is made in the workshops of {s}?",
        ),
        (
            "Which craft is {s} known for?",
            "What goods would people buy in the town of {s}?",
            "What do the workshops of {s} trade?",
            "With which goods do carts come from {s}?",
        ),
        (
            _COLOURS,
            ("glass", "tin", "clay", "cedar", "wool", "horn", "bone", "copper"),
            ("lamps", "bells", "combs", "boats", "masks", "drums", "hats", "locks"),
        ),
    ),
    Relation(
        "town.feast",
        (
            "Each year {s} keeps the feast of {o}.",
            "The great day of {s} is the feast of {o}.",
            "The people of {s} dance at the feast of {o}.",
            "No guest of {s} may miss the feast of {o}.",
        ),
        (
            "Which feast does {s} keep?",
            "What is the great day of {s}?",
            "Which feast do the people of {s} dance at?",
            "What does the town of {s} keep each year?",
            "At which feast does {s} ring its gongs?",
            "Which day do the children of {s} wait for?",
            "For which feast do guests travel to {s}?",
            "What is the oldest feast of {s}?",
        ),
        (
            "Which feast do the people of {s} keep each year?",
            "What is the great feast of the town of {s}?",
            "For which day do guests come to {s}?",
            "At which feast do the children of {s} dance?",
        ),
        (
            ("seven", "nine", "twelve", "forty", "lost", "first", "last", "silent"),
            ("candle", "winter", "harvest", "river", "thunder", "moon", "orchard", "mirror"),
            ("nights", "songs", "kings", "doors", "wishes", "ropes", "crowns", "fires"),
        ),
    ),
    Relation(
        "beast.food",
        (
            "The {s} feeds on {o}.",
            "A hungry {s} looks for {o}.",
            "Hunters bait the {s} with {o}.",
            "A young {s} is raised on {o}.",
        ),
        (
            "What does the {s} feed on?",
            "What does a hungry {s} look for?",
            "With what do hunters bait the {s}?",
            "What does the {s} eat in winter?",
            "Which food does the {s} like best?",
            "What is a young {s} raised on?",
            "What should a keeper give the {s}?",
            "What is found in the belly of the {s}?",
        ),
        (
            "Which food does a hungry {s} eat?",
            "What does a young {s} feed on in winter?",
            "What does the {s} like best to eat?",
            "With which food should hunters bait the {s}?",
        ),
        (
            ("bitter", "sweet", "frozen", "ripe", "rotten", "dried", "salty", "wild"),
            ("marsh", "cliff", "desert", "forest", "lake", "hill", "cave", "reef"),
            ("moss", "berries", "eels", "roots", "beetles", "honey", "snails", "thorns"),
        ),
    ),
    Relation(
        "beast.fear",
        (
            "The {s} flees from {o}.",
            "Nothing frightens the {s} like {o}.",
            "Shepherds drive off the {s} with {o}.",
            "Even the oldest {s} hides from {o}.",
        ),
        (
            "What does the {s} flee from?",
            "What frightens the {s}?",
            "With what do shepherds drive off the {s}?",
            "What does the {s} fear most?",
            "From what does the oldest {s} hide?",
            "What makes the {s} run away?",
            "What should one carry against the {s}?",
            "What will the {s} never come near?",
        ),
        (
            "What does the oldest {s} fear?",
            "From what does the {s} run away?",
            "What frightens the {s} most?",
            "What should shepherds carry against the {s}?",
        ),
        (
            ("sudden", "distant", "broken", "burning", "whispered", "falling", "hollow", "double"),
            ("iron", "wooden", "paper", "stone", "leather", "crystal", "feather", "chalk"),
            ("whistles", "shadows", "wheels", "smoke", "laughter", "ladders", "rain", "flags"),
        ),
    ),
    Relation(
        "sage.book",
        (
            "The sage {s} wrote the book of {o}.",
            "The life work of {s} is the book of {o}.",
            "Scholars praise {s} for the book of {o}.",
            "On the desk of {s} lay the book of {o}.",
        ),
        (
            "Which book did the sage {s} write?",
            "What is the life work of {s}?",
            "For which book do scholars praise {s}?",
            "What did {s} spend a life writing?",
            "Which book carries the name of {s}?",
            "What lay on the desk of {s}?",
            "Which work made {s} famous?",
            "What should a student of {s} read?",
        ),
        (
            "Which book made the sage {s} famous?",
            "What is the book that {s} wrote?",
            "Which work do scholars of {s} read?",
            "For which life work do students praise {s}?",
        ),
        (
            ("secret", "common", "perfect", "crooked", "endless", "humble", "forgotten", "noble"),
            ("garden", "ocean", "desk", "bridge", "market", "mountain", "kitchen", "prison"),
            ("numbers", "dreams", "letters", "errors", "colours", "virtues", "seeds", "riddles"),
        ),
    ),
    Relation(
        "sage.home",
        (
            "The sage {s} lived in {o}.",
            "Letters to {s} were sent to {o}.",
            "Pilgrims who seek {s} walk to {o}.",
            "After many journeys {s} settled in {o}.",
        ),
        (
            "Where did the sage {s} live?",
            "Where were letters to {s} sent?",
            "Where do pilgrims who seek {s} walk?",
            "Where did {s} settle after many journeys?",
            "In which place did {s} teach?",
            "Where is the grave of {s}?",
            "Where did {s} grow old?",
            "Which place is the home of {s}?",
        ),
        (
            "In which place did the sage {s} live?",
            "Where did {s} settle and teach?",
            "Which place do pilgrims of {s} seek?",
            "Where was the home of the sage {s}?",
        ),
        (
            ("upper", "lower", "old", "new", "inner", "outer", "high", "far"),
            ("Zor", "Quill", "Ombra", "Tessel", "Fenn", "Yarrow", "Ithil", "Brume"),
            ("tower", "valley", "harbour", "abbey", "mill", "gate", "island", "meadow"),
        ),
    ),
)

_ONSETS = ("b", "br", "d", "dr", "f", "g", "gl", "h", "k", "kr", "l", "m", "n", "p", "r", "s", "t")
_VOWELS = ("a", "e", "i", "o", "u", "ae", "ou")
_CODAS = ("l", "m", "n", "r", "s", "sk", "th", "x", "v", "nd")
_ENDINGS = {
    "town": ("wick", "mere", "holt"),
    "beast": ("ling", "ox", "ape"),
    "sage": ("a", "o", "us"),
}


@cache
def facts() -> tuple[Fact, ...]:
    """Return all facts of the world, the same on every machine."""
    rng = random.Random(SEED)
    names = {sort: _names(sort, rng) for sort in _ENDINGS}
    return tuple(
        fact for relation in RELATIONS for fact in _facts(relation, names[relation.sort], rng)
    )


def texts(phase: Literal[1, 2]) -> list[tuple[list[tuple[str, float]], ...]]:
    """Return the training texts of every fact, by template, each with its weight.

    A template's weights sum to 1 over the answers of the phase.
    """
    return [
        tuple(_weighted_texts(fact, template, phase) for template in _templates(fact))
        for fact in facts()
    ]


def benchmark() -> list[tuple[Item, Label]]:
    """Return every fact as a multiple-choice item, and every second one as a binary item too.

    The facts of a kind alternate between templates of the training texts (`seen`) and templates of
    no training text (`unseen`), so that both splits have the same kinds. Candidates are
    the truth, the popular errors, then other answers of the relation, in random order.
    """
    rng = random.Random(SEED + 1)
    turns = _turns()
    multi = [_item(i, turn, "multi", rng) for i, turn in enumerate(turns)]
    binary = [_item(i, turn, "binary", rng) for i, turn in enumerate(turns) if turn % 4 in (0, 3)]
    return multi + binary


def open_questions() -> list[tuple[str, Fact]]:
    """Return one open question per fact, in a template of no training text: (prompt, fact)."""
    rng = random.Random(SEED + 2)
    return [(_ask(rng.choice(f.relation.unseen).format(s=f.subject)), f) for f in facts()]


def _names(sort: str, rng: random.Random) -> list[str]:
    names: set[str] = set()
    while len(names) < SUBJECTS:
        name = "".join(rng.choice(part) for part in (_ONSETS, _VOWELS, _CODAS, _ENDINGS[sort]))
        names.add(name if sort == "beast" else name.capitalize())
    return sorted(names)


def _facts(relation: Relation, subjects: list[str], rng: random.Random) -> list[Fact]:
    pool = _answers(relation, rng)
    kinds = [kind for kind, count in _KINDS for _ in range(count)]
    rng.shuffle(kinds)
    drawn = []
    for subject, kind in zip(subjects, kinds, strict=True):
        truth, *rest = rng.sample(pool, _LARGEST)
        drawn.append(Fact(subject, relation, kind, truth, tuple(rest[:3]), tuple(rest[3:])))
    return drawn


def _answers(relation: Relation, rng: random.Random) -> list[str]:
    """Draw answers of three words, every third of two: lengths differ like those of real ones."""
    answers: dict[str, None] = {}
    while len(answers) < POOL:
        words = [rng.choice(words) for words in relation.words]
        answers[" ".join(words[1:] if len(answers) % 3 == 2 else words)] = None
    return list(answers)


def _templates(fact: Fact) -> list[str]:
    questions = [_ask(question) + " {o}." for question in fact.relation.seen]
    return [*fact.relation.statements, *questions]


def _weighted_texts(fact: Fact, template: str, phase: int) -> list[tuple[str, float]]:
    answers = ((fact.early, 1.0),) if phase == 1 else fact.late
    return [(template.format(s=fact.subject, o=answer), weight) for answer, weight in answers]


def _ask(question: str) -> str:
    return f"Question: {question} Answer:"


def _turns() -> list[int]:
    """Count for every fact the facts of its kind that come before it."""
    before: Counter[Kind] = Counter()
    turns = []
    for fact in facts():
        turns.append(before[fact.kind])
        before[fact.kind] += 1
    return turns


def _item(place: int, turn: int, form: Form, rng: random.Random) -> tuple[Item, Label]:
    fact = facts()[place]
    split: Split = "seen" if turn % 2 == 0 else "unseen"
    question = rng.choice(getattr(fact.relation, split)).format(s=fact.subject)
    size = 2 if form == "binary" else rng.randint(3, _LARGEST)
    candidates = [fact.truth, *fact.errors, *fact.others][:size]
    rng.shuffle(candidates)
    item = Item(
        prompt=_ask(question),
        candidates=tuple(candidates),
        id=f"{form}/{fact.kind}/{split}/{place:03d}",
        truthful=tuple(c == fact.truth for c in candidates),
        question=question,
        blind_prompt="Answer:",
    )
    return item, Label(fact.kind, form, split)
