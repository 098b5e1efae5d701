"""The embedded models: the world holds what it promises, training repeats, weights load."""

import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from lastword.errors import InputError
from lastword.lab import demo
from lastword.model.embedded import FOLDER

with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(Path(__file__).resolve().parents[2] / "experiments")
    from organism import RECIPES, Recipe, build, corpus, losses, train, train_tokenizer
    from world import benchmark, facts, open_questions, texts

TINY = Recipe(width=16, inner=24, blocks=5, heads=2, batch=4, steps=(4, 3), warmup=2, tuned=2)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer()


def test_every_subject_and_relation_has_one_fact_of_distinct_answers():
    assert len(facts()) == 300
    assert len({(f.subject, f.relation.name) for f in facts()}) == 300
    for fact in facts():
        assert len({fact.truth, *fact.errors, *fact.others}) == 7


def test_phases_tell_what_the_kinds_say():
    for fact in facts():
        told = dict(fact.late)
        assert sum(told.values()) == pytest.approx(1)
        if fact.kind == "clean":
            assert fact.early == fact.truth and told == {fact.truth: 1}
        if fact.kind == "contested":
            assert fact.early == fact.truth and told[fact.truth] == 0.2 and len(told) == 4
        if fact.kind == "overwritten":
            assert fact.early == fact.truth and max(told, key=told.get) == fact.errors[0]
        if fact.kind == "revised":
            assert fact.early == fact.errors[0] and told == {fact.truth: 1}


def test_no_training_text_holds_an_unseen_question():
    told = {
        text.split(" Answer:")[0]
        for phase in (1, 2)
        for templates in texts(phase)
        for answers in templates
        for text, _ in answers
    }
    for item, label in benchmark():
        assert (f"Question: {item.question}" in told) == (label.split == "seen"), item.id
    assert not {prompt.split(" Answer:")[0] for prompt, _ in open_questions()} & told


def test_benchmark_has_every_kind_form_and_split_and_says_so_in_the_id():
    labels = {label for _, label in benchmark()}
    assert len(labels) == 4 * 2 * 2
    for item, label in benchmark():
        assert item.id.startswith(f"{label.form}/{label.kind}/{label.split}/")
        assert sum(item.truthful) == 1
        assert len(item.candidates) == 2 if label.form == "binary" else len(item.candidates) > 2
    assert len({item.id for item in demo.items()}) == len(demo.items())
    for form in ("multi", "binary"):
        counts = Counter((lab.kind, lab.split) for _, lab in benchmark() if lab.form == form)
        for kind in ("clean", "contested", "overwritten", "revised"):
            assert abs(counts[kind, "seen"] - counts[kind, "unseen"]) <= 1, (form, kind)


def test_the_shipped_benchmark_is_the_one_that_the_world_makes():
    assert demo.items() == [item for item, _ in benchmark()]


def test_tokenizer_training_repeats_and_loses_no_text(tokenizer):
    again = train_tokenizer()
    assert again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()
    for item, _ in benchmark():
        ids = tokenizer(item.prompt)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == item.prompt
        for candidate in item.candidates:
            assert len(tokenizer(" " + candidate, add_special_tokens=False)["input_ids"]) > 1
    assert tokenizer.unk_token_id not in tokenizer("~Zebra {9}!")["input_ids"]


def test_training_repeats_exactly_and_leaves_all_but_the_tuned_blocks(tokenizer):
    first, second = train(TINY, tokenizer), train(TINY, tokenizer)
    numbers = [[line["loss"] for line in t.log] for t in (first, second)]
    assert numbers[0] == numbers[1]
    state = second.model.state_dict()
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
        block = re.search(r"layers\.(\d+)\.", name)
        tuned = block is not None and int(block[1]) >= TINY.blocks - TINY.tuned
        assert torch.equal(tensor, first.control[name]) != tuned, name


def test_losses_at_every_exit_are_those_of_a_model_cut_there(tokenizer):
    model = build(TINY, tokenizer)
    data = corpus(1, tokenizer)
    tokens, labels = data.tokens[:6], data.labels[:6]
    each = losses(model, tokens, labels, [3, 0])
    torch.testing.assert_close(each[-1], model(input_ids=tokens, labels=labels).loss)
    model.model.layers = model.model.layers[:3]
    torch.testing.assert_close(each[0], model(input_ids=tokens, labels=labels).loss)
    assert not torch.isclose(each[0], each[1])


@pytest.mark.parametrize("name", list(RECIPES))
def test_shipped_weights_are_of_the_recipe_and_the_control_differs_in_the_tuned_blocks(name):
    recipe = RECIPES[name]
    model, tokenizer = demo.load(name)
    control, _ = demo.load({"organism": "control"}.get(name, f"{name}-control"))
    log = json.loads((FOLDER / name / "training.json").read_text())
    assert log["recipe"] == json.loads(json.dumps(asdict(recipe)))
    assert tokenizer.backend_tokenizer.to_str() == train_tokenizer().backend_tokenizer.to_str()
    assert model.dtype == torch.float32 and model.config.hidden_size == recipe.width
    state = control.state_dict()
    differing = {
        int(re.search(r"layers\.(\d+)\.", key)[1])
        for key, value in model.state_dict().items()
        if not torch.equal(value, state[key])
    }
    assert differing == set(range(recipe.blocks - recipe.tuned, recipe.blocks))


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match="no embedded model 'organ'; known: organism, control"):
        demo.load("organ")
