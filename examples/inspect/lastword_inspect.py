"""Inspect: a model provider, `lastword/MODEL`, and a solver whose choices are corrected.

Inspect finds both by the entry point of its group. The solver scores each choice's own text after
the question, as TRACE does; Inspect's `multiple_choice` asks for a letter, which a small model does
not give. The decision is in the sample's metadata and among its events.
"""

from functools import partial
from typing import Any, cast

import anyio.to_thread
from inspect_ai.log import transcript
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    GenerateConfig,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    get_model,
    modelapi,
)
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolChoice, ToolInfo

from lastword import Decider, Decision
from lastword.errors import InputError

TEMPLATE = "Question: {question} Answer:"  # for a model without a chat template
CONTENT_FREE = ("N/A", "", "[MASK]")  # stand for the question where a correction reads that


class CorrectedModel(ModelAPI):
    """A model that `corrected_choice` can correct.

    Args:
        model_name: As `Tracer.from_pretrained` takes it.
        base_url: Not used.
        api_key: Not used.
        config: Inspect's options of generating.
        model_args: What loads a model, as `Decider.from_pretrained` takes it (`-M dtype=float32`).

    Raises:
        InputError: A keyword that is no option.
        ModelError: The model cannot be loaded.
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008 - Inspect's own
        **model_args: Any,
    ) -> None:
        super().__init__(model_name, base_url, api_key, [], config)
        self.decider = Decider.from_pretrained(model_name, **model_args)
        self.tracer = self.decider.tracer

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Return the model's answer to a conversation.

        Raises:
            InputError: There are tools, which no prompt of ours describes.
        """
        if tools:
            raise InputError("lastword calls no tools: take them out of the task")
        prompt = self.prompt(input)
        text, usage = await anyio.to_thread.run_sync(partial(self._write, prompt, config))
        output = ModelOutput.from_content(self.model_name, text)
        output.usage = usage
        return output

    def prompt(self, messages: list[ChatMessage]) -> str | list[dict[str, str]]:
        """Messages for the tokenizer's chat template, or their text where it has none."""
        if not self.tracer.tokenizer.chat_template:
            return "\n\n".join(message.text for message in messages)
        return [{"role": message.role, "content": message.text} for message in messages]

    def _write(
        self, prompt: str | list[dict[str, str]], config: GenerateConfig
    ) -> tuple[str, ModelUsage]:
        """Generate the text that follows a prompt, greedily unless there is a temperature."""
        tokenizer, chat = cast(Any, self.tracer.tokenizer), not isinstance(prompt, str)
        text = prompt
        if chat:
            text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(
            text,
            return_tensors="pt",
            return_token_type_ids=False,
            add_special_tokens=not chat,  # the template writes them
        )
        read = inputs["input_ids"].shape[1]
        with self.tracer.backbone.lock:
            model = cast(Any, self.tracer.backbone.model)
            output = model.generate(
                **inputs.to(self.tracer.backbone.device),
                tokenizer=tokenizer,
                **_settings(config),
            )
        new = output[0, read:]
        usage = ModelUsage(input_tokens=read, output_tokens=len(new), total_tokens=read + len(new))
        return tokenizer.decode(new, skip_special_tokens=True), usage


@modelapi(name="lastword")
def provider() -> type[CorrectedModel]:
    """Return the class that Inspect makes of `lastword/MODEL`."""
    return CorrectedModel


@solver
def corrected_choice(template: str | None = None) -> Solver:
    """Choose among a sample's choices by the rule; score it by Inspect's `choice()`.

    Args:
        template: Text around `{question}`, for a model without a chat template; `Question: ...
            Answer:` if left out.

    Raises:
        InputError: A template without `{question}`; another provider's model.
    """
    around = TEMPLATE if template is None else template
    if "{question}" not in around:
        raise InputError("a template has {question} where the question goes")

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        api = get_model().api
        if not isinstance(api, CorrectedModel):
            raise InputError(f"corrected_choice needs a model lastword/NAME, not {get_model()}")
        prompt = api.prompt(state.messages)
        if isinstance(prompt, str):
            prompt = around.replace("{question}", prompt)
        candidates = [choice.value for choice in state.choices]
        needs, texts = api.decider.correction.needs, isinstance(prompt, str)
        blind = around.replace("{question}", "") if texts and needs.blind else None
        free = CONTENT_FREE if texts and needs.content_free else ()
        correct = partial(
            api.decider.correct,
            prompt,
            candidates,
            blind_prompt=blind,
            content_free=[around.replace("{question}", text) for text in free],
        )
        _answer(state, await anyio.to_thread.run_sync(correct), api.model_name)
        return state

    return solve


def _answer(state: TaskState, decision: Decision, model: str) -> None:
    """Write a decision as the sample's answer, into its metadata and among its events."""
    record = decision.to_dict() | {"candidates": list(decision.candidates)}
    for place in range(len(state.choices)):
        state.choices.mark_choice(place, place == decision.index)
    state.metadata["lastword"] = record
    transcript().info(record, source="lastword")
    state.output = ModelOutput.from_content(model, decision.answer)
    state.messages.append(ChatMessageAssistant(content=decision.answer, model=model))


def _settings(config: GenerateConfig) -> dict[str, Any]:
    """Give Inspect's options of generating the names that transformers has for them."""
    options = {
        "max_new_tokens": config.max_tokens or 256,
        "do_sample": bool(config.temperature),
        "temperature": config.temperature or None,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "stop_strings": config.stop_seqs,
    }
    return {name: value for name, value in options.items() if value is not None}
