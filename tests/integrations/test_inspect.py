"""A local task in Inspect with corrected answers, and the decisions in its log."""

from pathlib import Path
from typing import Any

import pytest

from lastword import Decider, Tracer
from lastword.errors import InputError
from lastword.lab.demo import items

pytest.importorskip(
    "inspect_ai", reason="inspect_ai takes fsspec up to 2026.6 and the pins have 2026.9"
)
pytestmark = pytest.mark.filterwarnings("default")

MODEL = "lastword/lastword/demo-organism"
QUESTION = "Which goods come from Baevwick?"


def task_of(some: list[Any]) -> Any:
    """Return an Inspect task with these items and shuffled choices."""
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import choice
    from lastword_inspect import corrected_choice

    samples = [
        Sample(
            input=item.prompt.removeprefix("Question: ").removesuffix(" Answer:"),
            choices=list(item.candidates),
            target=[chr(ord("A") + i) for i, true in enumerate(item.truthful or ()) if true],
            id=item.id,
        )
        for item in some
    ]
    dataset = MemoryDataset(samples)
    dataset.shuffle_choices(seed=3)
    return Task(dataset=dataset, solver=corrected_choice(), scorer=choice())


def run(task: Any, folder: Path, **arguments: Any) -> Any:
    from inspect_ai import eval

    options: Any = {"log_dir": str(folder), "display": "none", "log_format": "json"}
    (result,) = eval(task, model=MODEL, model_args=arguments, **options)
    assert result.status == "success", result.error
    return result


@pytest.mark.parametrize("correction", ["trace", "pmi@0.5", "contextual"])
def test_a_task_runs_corrected_and_its_log_shows_decisions(correction: str, tmp_path: Path) -> None:
    from inspect_ai.log import read_eval_log

    log = run(task_of(items()[:16]), tmp_path, correction=correction)
    decider, by_id = Decider.demo(correction=correction), {item.id: item for item in items()}
    right = corrected = 0
    free = [f"Question: {text} Answer:" for text in ("N/A", "", "[MASK]")]
    texts: Any = {"blind_prompt": "Question:  Answer:", "content_free": free}
    for sample in read_eval_log(log.location).samples:
        item, shown = by_id[sample.id], sample.metadata["lastword"]
        decision = decider.correct(item.prompt, sample.choices, **texts)
        assert sample.output.completion == shown["answer"] == decision.answer
        assert shown["candidates"][shown["base_index"]] == shown["base_answer"]
        assert sum(shown["probabilities"]) == pytest.approx(1)
        (event,) = [e for e in sample.events if e.event == "info" and e.source == "lastword"]
        assert event.data["gates"] == shown["gates"]
        right += item.truthful[item.candidates.index(decision.answer)]
        corrected += shown["corrected"]
    (metric,) = [m for s in log.results.scores for n, m in s.metrics.items() if n == "accuracy"]
    assert metric.value == pytest.approx(right / 16) and 0 < right and corrected


def test_the_provider_generates() -> None:
    import anyio
    from inspect_ai.model import GenerateConfig, get_model

    model = get_model(MODEL, config=GenerateConfig(max_tokens=6))
    prompt = f"Question: {QUESTION} Answer:"
    output = anyio.run(model.generate, prompt)
    tracer: Any = Tracer.demo()
    inputs = tracer.tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    whole = tracer.backbone.model.generate(**inputs, max_new_tokens=6, do_sample=False)
    new = whole[0, inputs["input_ids"].shape[1] :]
    assert output.completion == tracer.tokenizer.decode(new, skip_special_tokens=True)
    assert output.usage.input_tokens > 5 and 0 < output.usage.output_tokens <= 6


def test_invalid_options_are_refused() -> None:
    from inspect_ai.model import get_model
    from lastword_inspect import corrected_choice

    with pytest.raises(InputError, match="torch_dtype: dtype"):
        get_model(MODEL, torch_dtype="float32", memoize=False)
    with pytest.raises(InputError, match="a template has {question}"):
        corrected_choice("Answer:")


def test_the_task_of_the_example_is_answered(tmp_path: Path) -> None:
    task = Path(__file__).parents[2] / "examples" / "inspect" / "goods.py"
    (sample,) = run(str(task), tmp_path).samples
    assert sample.output.completion == "pale cedar boats"
