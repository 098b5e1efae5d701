"""Prompts of decision models, which transformers 5.23 and later read from `decision.json`.

A template renders one prompt per question. One token, usually a letter, represents each option.
Prompts and tokens are made by transformers' code, so that its answers and ours agree.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lastword.decide.batch import Scope
from lastword.decide.tracer import sound
from lastword.errors import InputError, ItemError, one_line
from lastword.records.decision import Decision
from lastword.text.forest import Branch
from lastword.text.items import Item
from lastword.text.question import Choice, Predicate, Single
from lastword.text.tokens import Encoded, EncodedItem

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer

FILES = ("decision.json", "decision_template.jinja")
_HEADS = ("head.safetensors", "readout.safetensors")  # weights that their pipeline reads instead


@dataclass(frozen=True, eq=False)
class DecisionPrompt:
    """The prompt of a decision model: transformers' `DecisionConfig`, and a copy of a tokenizer."""

    name: ClassVar[str] = "transformers decision"

    config: Any
    tokenizer: Any  # transformers adds special tokens to it

    @classmethod
    def of(cls, tracer: "Tracer") -> "DecisionPrompt | None":
        """Return the decision prompt in a model's local folder, or None if the folder has none."""
        folder = Path(str(tracer.source.get("path", tracer.source["model"]))).expanduser()
        if not any((folder / file).is_file() for file in (*FILES, *_HEADS)):
            return None
        try:
            config = decision_config().from_pretrained(folder, local_files_only=True)
        except (ValueError, TypeError, OSError) as error:
            raise InputError(f"cannot read {FILES[0]} in {folder}: {one_line(error)}") from error
        if config.adapter or any((folder / file).is_file() for file in _HEADS):
            part = f"adapter in {config.adapter!r}" if config.adapter else "trained head"
            raise InputError(f"lastword cannot read the {part} that answers in transformers")
        return cls(config, deepcopy(tracer.tokenizer))

    def encode(self, text: str, question: Single) -> EncodedItem:
        """Return the prompt with one token per option."""
        from transformers.decision.template_utils import label_token_ids

        request = {"state": text, "questions": {"q": request_of(question)}}
        try:
            ((inputs, (parsed,)),) = self.config.prepare_inputs(request, self.tokenizer)
            tokens = label_token_ids(self.tokenizer, tuple(parsed.labels))
        except Exception as error:  # the template is a program and may raise anything
            raise InputError(f"its template refuses the question: {one_line(error)}") from error
        # The answer is the token at the mark, so the prompt ends before it.
        mark, *others = inputs["marks"].tolist()
        if others:
            raise InputError("its template has several marks, for a head that lastword cannot read")
        if isinstance(question, Predicate):
            places = dict(zip(parsed.options, tokens, strict=True))
            tokens = [places["true"], places["false"]]
        ids = tuple(inputs["input_ids"][0, :mark].tolist())
        branches = tuple(Branch((*ids, token), len(ids)) for token in tokens)
        names = tuple(option.text for option in question.options)
        return EncodedItem(Item(text, names), Encoded(branches))

    def decide(self, tracer: "Tracer", pairs: Sequence[tuple[str, Single]]) -> list[Decision]:
        """Return the model's answer to each question about a text."""
        encoded = [self.encode(*pair) for pair in pairs]
        context = tracer.profile.context
        if context is not None and any(item.prompt.prompt_tokens > context for item in encoded):
            raise ItemError(f"a prompt is longer than the model's context of {context} tokens")
        return [*map(sound, tracer.decide_group(encoded, Scope("base", "none")))]


def decision_config() -> Any:
    """Return the class of a decision model's configuration."""
    try:
        from transformers.decision import DecisionConfig
    except ImportError as error:
        raise InputError("a decision model needs transformers 5.23 or later") from error
    return DecisionConfig


def request_of(question: Single) -> Mapping[str, Any]:
    """Return a question in the format of transformers and System One."""
    request: dict[str, Any] = {"instructions": question.instructions or None}
    if isinstance(question, Predicate):
        return request | {"type": "noul", "criteria": {"true": question.yes, "false": question.no}}
    if isinstance(question, Choice):
        criteria = {option.text: option.description for option in question.options}
        return request | {"type": "choice", "criteria": criteria}
    levels = [": ".join(filter(None, (o.text, o.description))) for o in question.options]
    return request | {"type": "score", "criteria": levels}
