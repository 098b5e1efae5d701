"""SmolLM2-135M-Instruct in 4 bits, the one real model here; skipped if it is missing."""

from collections.abc import Callable

import pytest

from lastword import Tracer
from lastword.errors import InvariantError
from lastword.model import named
from lastword.model.options import LoadOptions
from lastword.model.weights.invariant import model_invariant, read_invariant
from lastword.rule.theta import Theta

MODEL = named.PUBLISHED["smollm2-135m"]
FILE = MODEL.place
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FILE is None, reason=f"no {MODEL.file}: {MODEL.advice}"),
]
QUESTION = "Question: What is the capital of France?\nAnswer:"


@pytest.fixture(scope="module")
def tracer(once: Callable[[LoadOptions], Tracer]) -> Tracer:
    return once(LoadOptions("lastword/smollm2-135m"))


def test_the_invariant_agrees_with_the_loaded_model(tracer):
    loaded = model_invariant(tracer.backbone.model, theta=Theta())
    assert tracer.invariant == loaded.value == pytest.approx(1.4326523775, abs=1e-9)
    assert loaded.branch(Theta().tau_I) == "mix"
    with pytest.raises(InvariantError, match="load it"):
        read_invariant(MODEL.path, theta=Theta())


def test_the_record_names_the_file(tracer):
    about = tracer.describe()
    expected = {"model": "lastword/smollm2-135m", "gguf": MODEL.file, "gguf_sha256": MODEL.digest}
    expected |= {"quantisation": "Q4_1 (GGUF), dequantised", "dtype": "float32"}
    assert about.items() >= (expected | {"depth": 30, "vocabulary": 49152}).items()
    assert about["check"]["road"] == "packed"


def test_it_answers_a_question_and_has_the_files_chat_template(tracer):
    decision = tracer.correct(QUESTION, ["London", "Paris", "Berlin"], read="base")
    assert decision.candidates[decision.base_index] == "Paris"
    messages = [{"role": "user", "content": "Hi"}]
    prompt = tracer.tokenizer.apply_chat_template(messages, tokenize=False)
    assert "<|im_start|>user\nHi<|im_end|>" in prompt
