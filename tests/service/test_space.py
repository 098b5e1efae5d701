"""The small page in Gradio: it is built, opens on an example, and answers."""

import gc

import pytest

from tracelm import Tracer

pytestmark = [
    pytest.mark.slow,
    # Gradio leaves event loops open, which Python tells when it collects them.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def test_the_page_answers_what_the_tracer_does():
    pytest.importorskip("gradio")
    from tracelm.service.space import page

    model = Tracer.demo()
    blocks = page(model)
    (answer,) = {f.fn for f in blocks.fns.values() if f.fn.__name__ == "answer"}
    prompt, candidates = "Question: Where is the lake of Oru? Answer:", ["north", "hills"]
    told, drawn = answer(prompt, "\n".join(candidates))
    decision = model.correct(prompt, candidates)
    assert decision.answer in told and len(drawn.data) > 2
    assert "same tokens" in answer("Q", "a\na")[0]
    gc.collect()
