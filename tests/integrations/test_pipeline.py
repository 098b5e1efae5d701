"""transformers' pipeline: made by its task's name, and its decisions the tracer's own."""

from collections.abc import Iterator
from typing import Any

import datasets
import pandas as pd
import pytest
import transformers
from families import build, random_items, tokenizer
from torch.utils.data import Dataset

import lastword.integrations.pipeline as registered
from lastword import Item, Theta, Tracer
from lastword.errors import InputError, ItemError

ITEMS = random_items(81, 5)
pipeline: Any = transformers.pipeline  # its types know no task but transformers' own


def as_dict(item: Item) -> dict[str, Any]:
    return {"id": item.id, "prompt": item.prompt, "candidates": list(item.candidates)}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    build("llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def correct(model: str) -> Any:
    return pipeline(registered.TASK, model=model, device="cpu")


@pytest.fixture(scope="module")
def known(model: str) -> list[dict[str, Any]]:
    tracer = Tracer.from_pretrained(model, device="cpu")
    return [decision.to_dict() for decision in tracer.correct_many(ITEMS)]


class Held(Dataset):
    def __len__(self) -> int:
        return len(ITEMS)

    def __getitem__(self, place: int) -> dict[str, Any]:
        if place >= len(ITEMS):
            raise IndexError(place)
        return as_dict(ITEMS[place])


def alike(found: dict[str, Any], known: dict[str, Any]) -> bool:
    return found.keys() == known.keys() and (
        found["answer"] == known["answer"]
        and found["operator"] == known["operator"]
        and found["scores"] == pytest.approx(known["scores"], abs=1e-5)
    )


def test_one_item_many_and_a_stream_give_the_tracers_decisions(correct, known):
    assert alike(correct(as_dict(ITEMS[0])), known[0])
    many = correct([as_dict(item) for item in ITEMS], batch_size=2)
    assert all(map(alike, many, known)) and len(many) == len(known)
    rows = [as_dict(item) for item in ITEMS]
    frames = (pd.DataFrame(rows), datasets.Dataset.from_list(rows))
    for source in ((as_dict(item) for item in ITEMS), Held(), *frames):
        stream = correct(source)
        assert isinstance(stream, Iterator)
        assert all(map(alike, stream, known))


def test_full_decisions_hold_the_trajectory(correct):
    found = correct(as_dict(ITEMS[0]), full=True)
    assert len(found["trajectory"][0]) == 7 and found["t_scores"] is not None
    assert "trajectory" not in correct(as_dict(ITEMS[0]))


def test_a_model_in_memory_with_constants_of_its_own():
    theta = Theta(gamma=-100.0)
    made = pipeline(
        registered.TASK,
        model=build("llama"),
        tokenizer=tokenizer(),
        device="cpu",
        invariant=0.5,
        theta=theta,
        full=True,
    )
    tracer = Tracer(build("llama"), tokenizer(), invariant=0.5, theta=theta)
    for item in ITEMS:
        decision = tracer.correct(item.prompt, item.candidates, read="all")
        found = made(as_dict(item))
        assert found["invariant"] == 0.5 and found["operator"] == decision.operator
        assert found["scores"] == pytest.approx(list(decision.scores), abs=1e-5)


def test_what_is_no_item_or_no_option(correct):
    with pytest.raises(ItemError, match="expected an Item, a dictionary"):
        correct("where is it?")
    with pytest.raises(ItemError, match='missing key "candidates"'):
        correct([{"prompt": "where"}])
    with pytest.raises(InputError, match="no option temperature"):
        correct(as_dict(ITEMS[0]), temperature=1.0)
