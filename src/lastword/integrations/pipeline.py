"""A transformers pipeline; importing this module registers its task, `lastword-correct`.

import lastword.integrations.pipeline
correct = transformers.pipeline("lastword-correct", model="Qwen/Qwen3-0.6B")
correct({"prompt": "Where is it?", "candidates": ["in the north", "in the south"]})
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from transformers import AutoModelForCausalLM, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from lastword.batch import Read
from lastword.errors import InputError
from lastword.text.items import Item, as_item, rows_of
from lastword.text.tokens import Chat
from lastword.theta import Theta
from lastword.tracer import Tracer

TASK = "lastword-correct"


class CorrectionPipeline(Pipeline):
    """Items in, decisions out, as dictionaries: the JSON of `lastword correct`.

    One item gives one decision, a list a list, and a generator, a dataset or a frame an iterator
    that reads it as its decisions are taken.

    Args:
        full: Read every depth and T, and return them.
        invariant: I(M), where it is known or the model has none; read from the weights otherwise.
        theta: Constants and switches.
        chat: Put prompts into the tokenizer's chat template.
        options: As transformers' own pipelines: `model`, `tokenizer`, `device`, ...
    """

    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor: Any = False
    _load_feature_extractor: Any = False

    def __init__(
        self,
        *args: Any,
        invariant: float | None = None,
        theta: Theta | None = None,
        chat: Chat | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        tokenizer: Any = self.tokenizer
        self.tracer = Tracer(self.model, tokenizer, invariant=invariant, theta=theta, chat=chat)

    def __call__(self, inputs: Any, **options: Any) -> Any:  # type: ignore[override]
        """The decision of an item, or those of many; many are packed, whatever `batch_size` says.

        Args:
            inputs: An item as a dictionary, or many of them as `Tracer.correct_many` takes them.
            options: `full`.

        Raises:
            ItemError: An item that cannot be answered.
        """
        if isinstance(inputs, Mapping | Item | str):
            return super().__call__(inputs, **options)  # type: ignore[no-untyped-call]
        many = inputs if isinstance(inputs, list) else rows_of(inputs)
        decisions = self._decisions(many, options)
        return list(decisions) if isinstance(inputs, list) else decisions

    def _decisions(self, items: Iterable[Any], options: dict[str, Any]) -> Iterator[dict[str, Any]]:
        own = {n: v for n, v in options.items() if n not in ("num_workers", "batch_size")}
        full = {**self._forward_params, **self._sanitize_parameters(**own)[1]}.get("full", False)
        for decision in self.tracer.correct_many(items, read="all" if full else "decide"):
            yield self.postprocess(decision, full=full)

    def _sanitize_parameters(
        self, **options: Any
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Options of preprocessing, of the model and of postprocessing.

        Raises:
            InputError: An option that the pipeline does not have.
        """
        if unknown := sorted(set(options) - {"full"}):
            raise InputError(f"{TASK} has no option {unknown[0]}; it has: full")
        return {}, options, options

    def preprocess(self, input_: Any, **options: Any) -> Any:
        """The item that a dictionary describes."""
        return as_item(input_, 0)

    def _forward(self, input_tensors: Any, **options: Any) -> Any:
        """Decide an item."""
        read: Read = "all" if options.get("full") else "decide"
        return next(self.tracer.correct_many([input_tensors], read=read))

    def postprocess(self, model_outputs: Any, **options: Any) -> Any:
        """The decision as plain JSON values."""
        return model_outputs.to_dict(full=bool(options.get("full")))


PIPELINE_REGISTRY.register_pipeline(
    TASK, pipeline_class=CorrectionPipeline, pt_model=AutoModelForCausalLM, type="text"
)
