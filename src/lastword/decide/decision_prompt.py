"""Prompts of decision models, which transformers 5.23 and later read from `decision.json`.

A template renders one prompt per question. One token, usually a letter, represents each option.
Prompts and tokens are made by transformers' code, so that its answers and ours agree.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import softmax

from lastword.decide.batch import Scope
from lastword.errors import CheckpointError, InputError, ItemError, NonFiniteError, one_line
from lastword.model.weights.hub import HubFiles, download
from lastword.records.decision import Decision
from lastword.text.branch import Branch
from lastword.text.items import Item
from lastword.text.question import Choice, Predicate, Single
from lastword.text.tokens import Encoded, EncodedItem

if TYPE_CHECKING:
    from lastword.decide.tracer import Tracer

FILES = ("decision.json", "decision_template.jinja")
_HEADS = ("head.safetensors", "readout.safetensors")  # weights that their pipeline reads instead


@dataclass(frozen=True, eq=False)
class DecisionPrompt:
    """The prompt of a decision model.

    Attributes:
        config: transformers' `DecisionConfig`.
        tokenizer: A copy of the model's, because transformers adds special tokens to it.
    """

    name: ClassVar[str] = "transformers decision"

    config: Any
    tokenizer: Any

    @classmethod
    def of(cls, tracer: "Tracer") -> "DecisionPrompt | None":
        """Return the decision prompt in a model's folder, or None if the folder has none.

        Raises:
            InputError: `decision.json` cannot be read, its template does not terminate, or the
                answers are those of a trained head or adapter.
        """
        source = tracer.source
        name, revision = str(source.get("path", source["model"])), source.get("revision")
        folder = Path(name).expanduser()
        if not any((folder / file).is_file() for file in (*FILES, *_HEADS)):
            cached = None if revision is None else _downloaded(name, revision)
            if cached is None:
                return None
            folder = cached
        try:
            from transformers.decision import DecisionConfig

            config = DecisionConfig.from_pretrained(folder, local_files_only=True)
        except ImportError as error:
            raise InputError("a decision model needs transformers 5.23 or later") from error
        except (ValueError, TypeError, OSError) as error:
            raise InputError(f"cannot read {FILES[0]} of {name}: {one_line(error)}") from error
        if config.adapter or any((folder / file).is_file() for file in _HEADS):
            part = f"adapter in {config.adapter!r}" if config.adapter else "trained head"
            raise InputError(f"lastword cannot read the {part} that answers in transformers")
        return cls.with_config(config, tracer)

    @classmethod
    def with_config(cls, config: Any, tracer: "Tracer") -> "DecisionPrompt":
        """Return the decision prompt of a configuration, with the model's tokenizer."""
        return cls(config, deepcopy(tracer.tokenizer))

    def encode(self, text: str, question: Single) -> tuple[EncodedItem, float]:
        """Return the prompt with one token per option, and the temperature of its probabilities.

        Raises:
            InputError: The question does not fit the model's labels, or the template refuses it.
        """
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
            places = {option: token for option, token in zip(parsed.options, tokens, strict=True)}
            tokens = [places["true"], places["false"]]
        ids = tuple(inputs["input_ids"][0, :mark].tolist())
        branches = tuple(Branch((*ids, token), len(ids)) for token in tokens)
        names = tuple(option.text for option in question.options)
        temperature = float(self.config.temperature.get(parsed.type, 1.0))
        return EncodedItem(Item(text, names), Encoded(branches)), temperature

    def decide(self, tracer: "Tracer", pairs: Sequence[tuple[str, Single]]) -> list[Decision]:
        """Return the model's answer to each question about a text.

        Raises:
            InputError: As in `encode`.
            ItemError: A prompt does not fit the model's context, or a logit is not finite.
        """
        encoded = [self.encode(*pair)[0] for pair in pairs]
        context = tracer.profile.context
        if context is not None and any(item.prompt.prompt_tokens > context for item in encoded):
            raise ItemError(f"a prompt is longer than the model's context of {context} tokens")
        decisions = list[Decision]()
        for decision in tracer.decide_group(encoded, Scope("base", "none")):
            if isinstance(decision, NonFiniteError):
                raise decision
            decisions.append(decision)
        return decisions

    def probabilities(self, tracer: "Tracer", text: str, question: Single) -> np.ndarray:
        """Return the probability of each option [options].

        Raises:
            InputError: As in `encode`.
            ItemError: As in `decide`.
        """
        (decision,) = self.decide(tracer, [(text, question)])
        temperature = self.encode(text, question)[1]
        return np.asarray(softmax(decision.base_scores / temperature))


def request_of(question: Single) -> Mapping[str, Any]:
    """Return a question in the format of transformers and System One."""
    request: dict[str, Any] = {"instructions": question.instructions or None}
    if isinstance(question, Predicate):
        return request | {"type": "noul", "criteria": {"true": question.yes, "false": question.no}}
    if isinstance(question, Choice):
        return request | {
            "type": "choice",
            "criteria": {option.text: option.description for option in question.options},
        }
    levels = [": ".join(filter(None, (o.text, o.description))) for o in question.options]
    return request | {"type": "score", "criteria": levels}


def _downloaded(name: str, revision: str) -> Path | None:
    """Return the folder with the files from the hub; None if it has none or cannot be reached."""
    files = HubFiles(name, revision)
    try:
        names = [file for file in (*FILES, *_HEADS) if files.read(file, 0, 1) is not None]
        paths = [download(name, file, revision)[0] for file in names]
    except CheckpointError:
        return None
    return paths[0].parent if paths else None
