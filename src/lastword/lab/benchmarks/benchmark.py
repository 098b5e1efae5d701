"""Benchmark: a data set, the conversion of its rows to examples, and its templates.

Wrong data, templates and options raise `InputError`, with the expected form.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from lastword.errors import InputError, ItemError
from lastword.files.strict_json import rows_digest
from lastword.lab.benchmarks.source import Row, Rows
from lastword.text.items import CONTENT_FREE, Item, as_dicts
from lastword.text.prompt_template import AS_IT_STANDS, Template

Kind = Literal["mc1", "mc2"]


@dataclass(frozen=True)
class Example:
    """One candidate set of a benchmark, before a template is applied.

    Attributes:
        id: Unique in its benchmark; `42/mc1` and `42/mc2` are one question of TruthfulQA.
        fields: Variables of a template by name.
        blind_fields: The fields without the question (a summary's document is its question); None
            if nothing can be left out.
        truthful: True for each candidate that is right; None without labels.
        kind: The metric that the example is for; None for all.
        ready: The user's item, whose separator, messages, group and literal are used.
        content_free_fields: The fields with content-free inputs in the place of the question; None
            to put these inputs into the fields that `blind_fields` changes.
    """

    id: str
    fields: Mapping[str, str]
    blind_fields: Mapping[str, str] | None
    candidates: tuple[str, ...]
    truthful: tuple[bool, ...] | None
    kind: Kind | None = None
    ready: Item | None = None
    content_free_fields: tuple[Mapping[str, str], ...] | None = None

    @classmethod
    def of(cls, item: Item, place: int) -> "Example":
        """Return an item with a ready prompt as an example with `prompt` and `question`.

        If the item has no blind prompt and its prompt contains its question exactly once, the
        blind prompt is the prompt without the question. A conversation gets no blind prompt.
        """
        question, blind, free = item.question or "", item.blind_prompt, item.content_free
        if question and item.prompt.count(question) == 1 and item.messages is None:
            blind = item.prompt.replace(question, "") if blind is None else blind
            free = free or tuple(item.prompt.replace(question, text) for text in CONTENT_FREE)
        return cls(
            id=str(place) if item.id is None else item.id,
            fields={"prompt": item.prompt, "question": question},
            blind_fields=None if blind is None else {"prompt": blind, "question": ""},
            candidates=item.candidates,
            truthful=item.truthful,
            ready=item,
            content_free_fields=tuple({"prompt": text, "question": ""} for text in free),
        )

    def _content_free(self) -> tuple[Mapping[str, str], ...]:
        """Return the fields for each content-free input: given, or made from the blind fields."""
        blind = self.blind_fields
        if self.content_free_fields is not None or blind is None:
            return self.content_free_fields or ()
        left_out = [name for name, text in self.fields.items() if blind.get(name) != text]
        return tuple({**self.fields, **dict.fromkeys(left_out, text)} for text in CONTENT_FREE)

    def item(self, template: Template, *, content_free: bool = False) -> Item:
        """Return the item that a template makes of this example."""
        item = self.ready or Item("", self.candidates, truthful=self.truthful)
        if item.messages is not None and template.text != AS_IT_STANDS:
            rule = "goes with prompts of text, and this one is a conversation"
            raise ItemError(f"template {template.name} {rule}", self.id)
        blind, free = self.blind_fields, self._content_free() if content_free else ()
        try:
            return replace(
                item,
                prompt=template.render(self.fields),
                id=self.id,
                question=self.fields.get("question") or None,
                blind_prompt=None if blind is None else template.render(blind),
                content_free=tuple(map(template.render, free)),
            )
        except ItemError:
            raise
        except InputError as error:
            raise ItemError(str(error), self.id) from error


@dataclass(frozen=True)
class Benchmark:
    """A row of the table of benchmarks.

    Attributes:
        name: The name for `--benchmark` and in records.
        read: Function that reads the rows from `--data`, or from the hub if that is None.
        parse: Function that converts row i to its examples; several are parts of one question.
        templates: Templates by variant, the default first: texts, or functions that make them.
        verify: Function that returns the version of the data from all examples; it raises if
            their number or schema is wrong.
    """

    name: str
    read: Callable[[Path | None], Rows]
    parse: Callable[[int, Row], tuple[Example, ...]]
    templates: Mapping[str, str | Callable[[], Template]]
    licence: str
    citation: str
    verify: Callable[[Sequence[tuple[Example, ...]]], str] = lambda rows: f"{len(rows)} items"

    @property
    def default_variant(self) -> str:
        """The variant of the default template."""
        return next(iter(self.templates))

    def template(self, variant: str | None = None) -> Template:
        """Return the template of a variant; None means the default."""
        name = self.default_variant if variant is None else variant
        if name not in self.templates:
            names = ", ".join(f"{self.name}/{v}" for v in self.templates)
            raise InputError(f"no template {self.name}/{name}; known: {names}, or a Jinja file")
        made = self.templates[name]
        return Template(f"{self.name}/{name}", "1", made) if isinstance(made, str) else made()

    def load(
        self, data: Path | None = None, *, limit: int | None = None, seed: int | None = None
    ) -> "Dataset":
        """Read, verify and fingerprint the data, then choose `limit` questions.

        Args:
            data: A file, or a folder with one of the expected file names; None for the hub.
            limit: Number of questions; None for all.
            seed: Seed to draw the questions at random, in the data's order; None for the first.
        """
        if seed is not None and limit is None:
            raise InputError("seed draws a random subset: give its size with limit")
        if limit is not None and limit < 1:
            raise InputError(f"limit is at least 1, not {limit}")
        table = self.read(data)
        try:
            questions = [self.parse(i, row) for i, row in enumerate(table.rows)]
            version = self.verify(questions)
        except InputError as error:
            raise InputError(f"{self.name} from {table.source}: {error}") from error
        return Dataset(
            benchmark=self,
            version=version,
            source=table.source,
            fingerprint=fingerprint(list(chain.from_iterable(questions))),
            questions=len(questions),
            limit=limit,
            seed=seed,
            examples=tuple(chain.from_iterable(_choose(questions, limit, seed))),
        )


@dataclass(frozen=True)
class Dataset:
    """The verified examples of one benchmark, with their source.

    Attributes:
        version: The version of the data, recognised from its content.
        source: File name, or repository and configuration on the hub.
        fingerprint: SHA-256 of all examples in canonical form, chosen or not.
        limit: Maximum number of questions; None for all.
        seed: Seed of the draw; None for the first questions.
        examples: The chosen examples, in the data's order.
    """

    benchmark: Benchmark
    version: str
    source: str
    fingerprint: str
    questions: int
    limit: int | None
    seed: int | None
    examples: tuple[Example, ...]

    def items(
        self, template: Template, *, blind: bool = True, content_free: bool = False
    ) -> list[Item]:
        """Return every chosen example as an item with a template."""
        items = [e.item(template, content_free=content_free) for e in self.examples]
        return items if blind else [replace(item, blind_prompt=None) for item in items]

    def to_dict(self) -> dict[str, Any]:
        """Return its description in `run.json`."""
        return {
            "version": self.version,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "questions": self.questions,
            "limit": self.limit,
            "seed": self.seed,
            "licence": self.benchmark.licence,
            "citation": self.benchmark.citation,
        }


def fingerprint(examples: Sequence[Example]) -> str:
    """Return the SHA-256 of the examples in canonical JSON, one per line.

    It does not depend on the file format or the template, so that local and hub copies agree.
    """
    return rows_digest(
        [
            *(e.id, dict(e.fields), e.candidates, e.truthful, e.kind),
            *([" "] if e.ready is None else _added(e.ready)),
        ]
        for e in examples
    )


def _added(item: Item) -> list[Any]:
    messages = [] if item.messages is None else [as_dicts(item.messages)]
    return [item.separator, *messages, *([] if item.group is None else [{"group": item.group}])]


def exactly(count: int, version: str) -> Callable[[Sequence[object]], str]:
    """Return a function that checks the number of questions, and returns the data's version."""

    def verify(questions: Sequence[object]) -> str:
        if len(questions) != count:
            given = len(questions)
            raise InputError(f"expected {count} rows, got {given}; for another set use jsonl:PATH")
        return version

    return verify


def _choose(
    questions: list[tuple[Example, ...]], limit: int | None, seed: int | None
) -> list[tuple[Example, ...]]:
    if limit is None or limit >= len(questions):
        return questions
    if seed is None:
        return questions[:limit]
    places = random.Random(seed).sample(range(len(questions)), limit)
    return [questions[i] for i in sorted(places)]
