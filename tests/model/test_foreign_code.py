"""Untrusted checkpoints: code is not run, pickles are not read, templates are sandboxed."""

import base64
import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from families import save, talker
from safetensors.torch import load_file, save_file

from lastword import Tracer
from lastword.errors import InputError, InvariantError, ModelError
from lastword.model.loading import load, load_tokenizer
from lastword.model.options import LoadOptions
from lastword.model.weights.invariant import read_invariant
from lastword.rule.theta import Theta
from lastword.text.chat import templated
from lastword.text.items import Message, as_dicts

CODE = "open({!r}, 'w').close()\nclass Evil: pass\ndef generate(*_, **__): pass\n"
REMOTE = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
UNKNOWN = {"model_type": "evil", "auto_map": REMOTE}
TOKENIZER_CODE = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("base") / "model", hidden_size=128)


@pytest.fixture
def marker(tmp_path) -> Path:
    """Return the path of the file that foreign code creates when it runs."""
    return tmp_path / "marker"


@pytest.fixture
def foreign(base, tmp_path, marker) -> Callable[..., Path]:
    """Return a function that copies the model with code and changed configs."""

    def make(
        config: dict[str, Any] | None = None, tokenizer_config: dict[str, Any] | None = None
    ) -> Path:
        folder = tmp_path / "foreign"
        shutil.copytree(base, folder)
        for place in (folder, folder / "custom_generate"):
            place.mkdir(exist_ok=True)
            for name in ("evil.py", "generate.py"):
                (place / name).write_text(CODE.format(str(marker)))
        for file, changes in (("config.json", config), ("tokenizer_config.json", tokenizer_config)):
            rewrite(folder / file, changes or {})
        return folder

    return make


def rewrite(path: Path, changes: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as caught:
        load(LoadOptions(str(folder), **options))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Code


@pytest.mark.parametrize(
    ("config", "tokenizer_config"),
    [(UNKNOWN, None), (None, TOKENIZER_CODE), ({"attn_implementation": "evil/kernel"}, None)],
    ids=["model", "tokenizer", "kernel"],
)
def test_required_code_is_run_only_if_it_is_trusted(foreign, marker, config, tokenizer_config):
    folder = foreign(config, tokenizer_config)
    for read in (load,) if tokenizer_config is None else (load, load_tokenizer):
        with pytest.raises(ModelError, match="--trust-remote-code") as caught:
            read(LoadOptions(str(folder)))
        assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert not marker.exists()
    if "attn_implementation" not in (config or {}):
        with pytest.raises((ModelError, AttributeError)):  # it defines no model
            load(LoadOptions(str(folder), trust_remote_code=True))
        assert marker.exists()


def test_unneeded_code_is_not_run(foreign, marker, run):
    tokenizer_config = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    folder = foreign({"auto_map": REMOTE}, tokenizer_config)
    loaded = load(LoadOptions(str(folder)))
    assert type(loaded.model).__name__ == "LlamaForCausalLM"
    rewrite(folder / "config.json", UNKNOWN)
    code, out, _ = run("invariant", folder)
    assert code == 0 and out and not marker.exists()


LINE = json.dumps({"prompt": "w5 w6", "candidates": ["w7", "w8"], "truthful": [True, False]})
BENCHMARK = ("--benchmark", "jsonl:items.jsonl")
MODEL, WORDS = (UNKNOWN, None), (None, TOKENIZER_CODE)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (("bench", *BENCHMARK), MODEL),
        (("correct", "--input", "items.jsonl"), WORDS),
        (("eval", *BENCHMARK), MODEL),
        (("serve", "--port", "0"), MODEL),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_no_command_runs_code(foreign, marker, run, tmp_path, monkeypatch, command, files):
    monkeypatch.chdir(tmp_path)
    # Prompts on the terminal are answered with yes.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    Path("items.jsonl").write_text(LINE + "\n")
    code, _, err = run(*command, "--model", foreign(*files))
    assert code == 1 and "--trust-remote-code" in err.splitlines()[-1]
    assert not marker.exists()


# Adapters

# peft uses an attribute that transformers has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory) -> Path:
    peft = pytest.importorskip("peft")
    options = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["k_proj"])
    adapted = peft.get_peft_model(load(LoadOptions(str(base))).model, options)
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(folder := tmp_path_factory.mktemp("adapter"))
    return folder


@pytest.fixture
def spoiled(adapter, tmp_path) -> Callable[..., Path]:
    """Return a function that copies the adapter with a changed config."""

    def make(**changes: Any) -> Path:
        shutil.copytree(adapter, folder := tmp_path / "adapter")
        rewrite(folder / "adapter_config.json", changes)
        return folder

    return make


class Payload:
    """A pickle that creates a folder."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._file),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": "four"}, "does not fit"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4}, "does not fit"),
        ({"target_modules": ["nothing"]}, "does not fit"),
        ({"lora_alpha": 1e308}, "NaN"),
        ({"r": 0}, "should be a positive integer"),
        ({"base_model_name_or_path": "org/m", "revision": "../x"}, "'../x' names no revision"),
        ({"base_model_name_or_path": "org/m", "revision": ["v2"]}, "get it whole"),
        ({"megatron_config": {}, "megatron_core": "evil"}, None),
        ({"auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"}}, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_invalid_adapter_config_is_refused(spoiled, marker, changes, words):
    folder = spoiled(**changes)
    (folder / "evil.py").write_text(CODE.format(str(marker)))
    if words is None:  # an ignored key
        load(LoadOptions(str(folder)))
    else:
        assert words in refusal(folder)
    assert not marker.exists()


def test_an_adapter_has_the_invariant_of_the_merged_model(base, adapter, run):
    code, out, err = run("invariant", adapter, "--json")
    merged = Tracer.from_pretrained(str(adapter)).invariant
    assert (code, err) == (0, "") and json.loads(out)["invariant"] == merged
    with pytest.raises(InvariantError, match="load it"):
        read_invariant(adapter, theta=Theta())


def test_code_of_an_adapter_or_its_base_is_refused(foreign, spoiled, marker):
    folder = spoiled(base_model_name_or_path=str(foreign(UNKNOWN)))
    assert "--trust-remote-code" in refusal(folder) and not marker.exists()
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CODE))
    (folder / "evil.py").write_text(CODE.format(str(marker)))
    assert "--trust-remote-code" in refusal(folder) and not marker.exists()


def test_damaged_mismatched_and_pickled_adapters_are_refused(spoiled, marker):
    weights = spoiled() / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-500])
    assert str(weights.parent) in refusal(weights.parent)
    weights.write_bytes(whole)
    tensors = load_file(weights)
    save_file({name: torch.ones(4, 9) for name in tensors}, weights)
    assert f"the adapter {weights.parent} does not fit" in refusal(weights.parent)
    weights.unlink()
    weights.with_suffix(".bin").write_bytes(pickle.dumps(Payload(marker)))
    assert "needs adapter_model.safetensors" in refusal(weights.parent, allow_bin=True)
    assert not marker.exists()


def test_a_normalisation_map_that_crashes_the_tokenizer_is_an_error(foreign):
    folder = foreign()
    content = struct.pack("<I", 16) + bytes(16) + b"w\0"  # a trie of 4 entries, out of range
    rule = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}
    rewrite(folder / "tokenizer.json", {"normalizer": rule})
    with pytest.raises(ModelError, match="the tokenizer cannot read this text: index out of") as it:
        Tracer.from_pretrained(str(folder)).correct("the sun", ["is", "was"])
    assert "\n" not in str(it.value)


# Chat templates


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages %}{{ [m.role, 'é</x>'] | tojson(indent=1) }}: {{ m.content }}\n  "
        "{% endfor %}",
        "{{ bos_token }}{% generation %}{{ messages[-1].content }}{% endgeneration %}!",
        "{% set s = namespace(n=0) %}{% for m in messages %}{% set s.n = s.n + 1 %}{% endfor %}"
        "{{ s.n }}{{ enable_thinking }}{{ tools is none }}{{ add_generation_prompt }} é😀"
        "{{ messages[-1].content }}",
    ],
)
def test_a_template_is_rendered_as_by_transformers(template):
    tokenizer = talker(template)
    messages = [Message("system", "w5 é"), Message("user", '</x> "w6"')]
    options = {"add_generation_prompt": True, "enable_thinking": False, "thinking": False}
    expected = tokenizer.apply_chat_template(as_dicts(messages), tokenize=False, **options)
    assert templated(messages, tokenizer) == expected


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% break", "refuses the prompt"),
        ("{{ messages[0].unknown.deeper }}", "refuses the prompt: .*unknown"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "refuses .*recursion"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ messages[0].content * 3000 }}", "writes a text 3000 times"),
        ("{{ raise_exception('no,\nthank you') }}", "refuses the prompt: no, thank you"),
        # Ways out of the sandbox.
        ("{% set n = namespace() %}{% set n.__init__ = 1 %}", "refuses the prompt"),
        ("{{ messages.append(1) }}", "refuses the prompt"),
        ("{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "refuses the prompt"),
    ],
)
def test_a_template_that_cannot_render_is_an_error(template, words):
    with pytest.raises(InputError, match=words) as refused:
        templated([Message("user", "w5")], talker(template))
    assert "\n" not in str(refused.value)
