"""What a checkpoint brings beside numbers: code is not run, a pickle not read, a bomb refused."""

import base64
import json
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from families import save, talker
from harness_tasks import write_tasks
from safetensors.torch import load_file, save_file

from lastword import Tracer
from lastword.errors import InputError, InvariantError, ModelError
from lastword.model.loading import load, load_tokenizer
from lastword.model.options import LoadOptions
from lastword.model.weights.invariant import read_invariant
from lastword.rule.theta import Theta
from lastword.text import chat_template as templates
from lastword.text.chat_template import require_bounded
from lastword.text.messages import Message, as_dicts
from lastword.text.tokens import templated

CODE = "open({!r}, 'w').close()\nclass Evil: pass\ndef generate(*_, **__): pass\n"
REMOTE = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}
UNKNOWN = {"model_type": "evil", "auto_map": REMOTE}
OWN_TOKENIZER = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save(tmp_path_factory.mktemp("base") / "model", hidden_size=128)


@pytest.fixture
def ran(tmp_path) -> Path:
    """The file that foreign code leaves behind wherever it runs."""
    return tmp_path / "ran"


@pytest.fixture
def foreign(base, tmp_path, ran) -> Callable[..., Path]:
    """A copy of the model with code of its own, and other words in its configs."""

    def make(config: dict[str, Any] | None = None, own: dict[str, Any] | None = None) -> Path:
        folder = tmp_path / "foreign"
        shutil.copytree(base, folder)
        for place in (folder, folder / "custom_generate"):
            place.mkdir(exist_ok=True)
            for name in ("evil.py", "generate.py"):
                (place / name).write_text(CODE.format(str(ran)))
        for file, changes in (("config.json", config), ("tokenizer_config.json", own)):
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


# Configs


def test_a_config_with_nothing_to_divide_by_is_refused_in_a_line(foreign):
    folder = foreign({"head_dim": None})
    for name in ("num_attention_heads", "num_key_value_heads"):
        rewrite(folder / "config.json", {"num_attention_heads": 4, name: 0})
        assert refusal(folder) == f"the config of {folder} says {name} = 0: correct it"


def test_a_pointer_of_git_lfs_is_refused_in_any_file_that_is_read(foreign):
    folder = foreign({})
    for file in ("config.json", "tokenizer.json", "tokenizer.model"):
        path = folder / file
        whole = path.read_bytes() if path.exists() else None
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n")
        assert refusal(folder) == f"{path} is a pointer of Git LFS: run `git lfs pull`"
        path.unlink() if whole is None else path.write_bytes(whole)


# Code


@pytest.mark.parametrize(
    ("config", "own"),
    [(UNKNOWN, None), (None, OWN_TOKENIZER), ({"attn_implementation": "evil/kernel"}, None)],
    ids=["model", "tokenizer", "kernel"],
)
def test_code_that_is_needed_is_not_run_and_the_error_says_so(foreign, ran, config, own):
    folder = foreign(config, own)
    told = refusal(folder)
    assert "--trust-remote-code" in told and str(folder) in told
    if own is not None:
        with pytest.raises(ModelError, match="--trust-remote-code"):
            load_tokenizer(LoadOptions(str(folder)))
    assert not ran.exists()


def test_code_that_is_not_needed_is_not_run(foreign, ran):
    known = {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    loaded = load(LoadOptions(str(foreign({"auto_map": REMOTE}, known))))
    assert type(loaded.model).__name__ == "LlamaForCausalLM" and not ran.exists()


@pytest.mark.parametrize(("config", "own"), [(UNKNOWN, None), (None, OWN_TOKENIZER)])
def test_code_that_is_trusted_is_run(foreign, ran, config, own):
    with pytest.raises((ModelError, AttributeError)):  # it is no model
        load(LoadOptions(str(foreign(config, own)), trust_remote_code=True))
    assert ran.exists()


LINE = json.dumps({"prompt": "w5 w6", "candidates": ["w7", "w8"], "truthful": [True, False]})


BENCHMARK = ("--benchmark", "jsonl:items.jsonl")
MODEL, WORDS = (UNKNOWN, None), (None, OWN_TOKENIZER)
SHOW = ("--show-prompt", "--chat-template")


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (("bench", *BENCHMARK), MODEL),
        (("compare", *BENCHMARK), MODEL),
        (("correct", "--input", "items.jsonl"), MODEL),
        (("correct", "--input", "items.jsonl"), WORDS),
        (("eval", *BENCHMARK), MODEL),
        (("eval", *BENCHMARK, *SHOW), WORDS),
        (("serve", "--port", "0"), MODEL),
        (("lm-eval", "--tasks", "made_choice", "--include_path", "."), MODEL),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_no_command_runs_it(foreign, ran, run, tmp_path, monkeypatch, command, files):
    monkeypatch.chdir(tmp_path)
    # What asks on the terminal is answered yes.
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    Path("items.jsonl").write_text(LINE + "\n")
    name, *options = command
    if name == "lm-eval":
        write_tasks(tmp_path)
        harness = pytest.importorskip("lm_eval.tasks").TaskManager
        alone = partialmethod(harness.__init__, include_defaults=False)
        monkeypatch.setattr(harness, "__init__", alone)
    named = ["--model_args", "pretrained={}"] if name == "lm-eval" else ["--model", "{}"]
    folder = foreign(*files)
    code, _, err = run(name, *options, *(word.format(folder) for word in named))
    assert code == 1 and "--trust-remote-code" in err.splitlines()[-1]
    assert not ran.exists()


def test_invariant_reads_numbers_alone(foreign, ran, run):
    code, out, _ = run("invariant", foreign(UNKNOWN, OWN_TOKENIZER))
    assert code == 0 and out and not ran.exists()


# Adapters

# peft asks a model whether it trains in a way that transformers has left.
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
    """A copy of the adapter with other words in its config."""

    def make(**changes: Any) -> Path:
        shutil.copytree(adapter, folder := tmp_path / "adapter")
        rewrite(folder / "adapter_config.json", changes)
        return folder

    return make


class Payload:
    """What a pickle can do."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._file),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"r": 10**7}, "has the rank 10000000"),
        ({"rank_pattern": {"k_proj": 10**7}}, "has the rank 10000000"),
        ({"r": "four"}, "has the rank 'four'"),
        ({"peft_type": "EVIL"}, "does not fit"),
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 10**9}, "which cannot be merged"),
        ({"target_modules": ["nothing"]}, "does not fit"),
        ({"lora_alpha": []}, "does not fit"),
        ({"lora_alpha": 1e308}, "NaN"),
        ({"lora_alpha": float("nan")}, "NaN"),
        ({"r": 0}, "should be a positive integer"),
        ({"megatron_config": {}, "megatron_core": "evil"}, None),
        ({"auto_mapping": {"base_model_class": "Evil", "parent_library": "evil"}}, None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_adapter_that_asks_for_what_it_has_not_is_refused(spoiled, ran, changes, words):
    folder = spoiled(**changes)
    (folder / "evil.py").write_text(CODE.format(str(ran)))
    if words is None:  # a word that nobody reads
        load(LoadOptions(str(folder)))
    else:
        told = refusal(folder)
        assert words in told and str(folder) in told
    assert not ran.exists()


def test_the_invariant_of_an_adapter_is_that_of_the_merged_model(base, adapter, run):
    code, out, err = run("invariant", adapter, "--json")
    merged = Tracer.from_pretrained(str(adapter)).invariant
    assert (code, err) == (0, "") and json.loads(out)["invariant"] == merged
    with pytest.raises(InvariantError, match="load it"):
        read_invariant(adapter, theta=Theta())


@pytest.mark.parametrize(
    ("revision", "words"), [("../x", "../x names no revision of org/m"), (["v2"], "get it whole")]
)
def test_an_adapters_revision_leads_nowhere_else(spoiled, revision, words):
    assert words in refusal(spoiled(base_model_name_or_path="org/m", revision=revision))


def test_an_adapters_pickle_is_not_opened(spoiled, ran):
    folder = spoiled()
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Payload(ran)))
    for options in ({}, {"allow_bin": True}):
        assert "needs adapter_model.safetensors" in refusal(folder, **options)
    assert not ran.exists()


def test_an_adapter_or_its_model_that_brings_code_is_refused(foreign, spoiled, ran):
    folder = spoiled(base_model_name_or_path=str(foreign(UNKNOWN)))
    assert "--trust-remote-code" in refusal(folder) and not ran.exists()
    (folder / "tokenizer_config.json").write_text(json.dumps(OWN_TOKENIZER))
    (folder / "evil.py").write_text(CODE.format(str(ran)))
    assert "--trust-remote-code" in refusal(folder) and not ran.exists()


def test_an_adapter_that_is_torn_or_anothers_is_named(spoiled):
    weights = spoiled() / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-500])
    assert str(weights.parent) in refusal(weights.parent)
    weights.write_bytes(whole)
    tensors = load_file(weights)
    save_file({name: torch.ones(4, 9) for name in tensors}, weights)
    assert f"the adapter {weights.parent} does not fit" in refusal(weights.parent)


def test_an_adapter_that_is_larger_than_memory_is_not_read(spoiled):
    weights = spoiled() / "adapter_model.safetensors"
    rows = 2**42
    entry = {"dtype": "F32", "shape": [rows, 1], "data_offsets": [0, 4 * rows]}
    header = json.dumps({f"{KEY}.lora_A.weight": entry}).encode()
    with weights.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
    assert "GB are free" in refusal(weights.parent)


KEY = "base_model.model.model.layers.0.self_attn.k_proj"


# Normalisers


def test_a_sentencepiece_model_that_normalises_nothing_is_taken(tmp_path):
    """Its map has no bytes, and is there all the same; the tokens are sentencepiece's own."""
    import sentencepiece

    text, file = "the cat sat on a mat", tmp_path / "tokenizer.model"
    with file.open("wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([text, "a hat for the cat", "that mat"] * 9),
            model_writer=out,
            vocab_size=290,
            hard_vocab_limit=False,
            model_type="bpe",
            byte_fallback=True,
            normalization_rule_name="identity",
            minloglevel=3,
        )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    own: Any = load_tokenizer(LoadOptions(str(tmp_path)))
    expected = sentencepiece.SentencePieceProcessor(model_file=str(file)).encode(text)
    assert own(text, add_special_tokens=False).input_ids == expected


def test_a_map_that_breaks_the_tokenizer_down_is_an_error_in_a_line(foreign):
    folder = foreign()
    content = struct.pack("<I", 16) + bytes(16) + b"w\0"  # a trie of four, asked for every letter
    rule = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}
    rewrite(folder / "tokenizer.json", {"normalizer": rule})
    with pytest.raises(ModelError, match="the tokenizer cannot read this text: index out of") as it:
        Tracer.from_pretrained(str(folder)).correct("the sun", ["is", "was"])
    assert "\n" not in str(it.value)


# Chat templates

STEP = "{% set n = 7 ** 999999999 %}"  # in which nothing else of its process runs
LOOPS = "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = [
    (LOOPS, "takes more than 0.3 s or 512 MiB"),
    ("{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}", "more than 0.3 s"),
    ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
    ("{{ 'a' * 10 ** 10 }}", "takes more memory"),
    ("{{ 'a' * 10 ** 7 }}", "writes 10000000 characters, more than 1048576"),
    ("{% for i in range(99999) %}{{ messages }}{% endfor %}", "characters, more than"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
@pytest.mark.parametrize(("template", "words"), BOMBS)
def test_a_chat_template_without_bounds_is_refused(template, words, monkeypatch):
    monkeypatch.setattr(templates, "_TRIAL_SECONDS", 0.3)
    with pytest.raises(ModelError, match="M has a chat template that") as refused:
        require_bounded({"default": "{{ 1 }}", "other": template}, "M")
    assert words in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}{{ m.role }}: {{ m.content | tojson }}\n{% endfor %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ strftime_now('%Y') }}",
        "{{ raise_exception('only one message, please') }}",
        "{% break",
        "{{ messages[0].unknown.deeper }}",
    ],
)
def test_a_chat_template_with_bounds_is_taken_whatever_it_refuses(template):
    require_bounded(template, "M")


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
def test_a_model_whose_chat_template_has_no_bounds_is_refused_when_it_loads(foreign):
    folder = foreign()
    (folder / "chat_template.jinja").write_text(BOMBS[2][0])
    assert f"{folder} has a chat template that" in refusal(folder)
    with pytest.raises(ModelError, match="has a chat template that"):
        load_tokenizer(LoadOptions(str(folder)))


def test_the_trial_runs_apart_from_the_surroundings(tmp_path, monkeypatch):
    """Not even a module that stands in the path is imported there."""
    (tmp_path / "jinja2.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    require_bounded("{{ 'not tried before' }}", "M")


def test_a_chat_template_that_hangs_on_some_message_is_stopped(monkeypatch):
    """One that is tame in its trial, and not on a word that it waits for."""
    own = talker(
        "{% if 'w9' in messages[0].content %}" + LOOPS + "{% endif %}{{ messages[0].content }}"
    )
    require_bounded(own.chat_template, "M")
    monkeypatch.setattr(templates, "_SECONDS", 0.5)
    with pytest.raises(InputError, match="takes more than 0.5 s"):
        templated([Message("user", "w9")], own)
    assert templated([Message("user", "w8")], own) == "w8"


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
def test_what_is_written_apart_is_what_transformers_writes(template):
    own = talker(template)
    said = [Message("system", "w5 é"), Message("user", '</x> "w6"')]
    expected = own.apply_chat_template(
        as_dicts(said),
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
        thinking=False,
    )
    assert templated(said, own) == expected


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ ('a' * 10 ** 10) | length }}", "takes more memory"),
        ("{{ messages[0].content * 1000000 }}", "writes 28000000 characters"),
        ("{{ raise_exception('no,\nthank you') }}", "refuses the prompt: no, thank you"),
        ("{{ messages[0].content + 1 }}", "refuses the prompt: .*concatenate"),
        # Ways out of the sandbox.
        ("{% set n = namespace() %}{% set n.__init__ = 1 %}", "refuses the prompt"),
        ("{{ namespace(__class__=1) }}", "refuses the prompt"),
        ("{{ messages.append(1) }}", "refuses the prompt"),
        ("{{ ''.__class__ }}{{ ''.__class__.__mro__ }}", "refuses the prompt"),
    ],
)
def test_a_template_that_cannot_write_its_prompt_is_told_in_a_line(template, words):
    with pytest.raises(InputError, match=words):
        templated([Message("user", "w5")], talker(template))


@pytest.mark.skipif(sys.platform == "win32", reason="processes have no limits there")
@pytest.mark.parametrize("end", ["bomb", "kill"])
def test_after_a_process_that_ended_another_writes(end):
    own = templates.Renderer()
    write = partial(own.write, [], values={}, limit=100)
    try:
        assert write("yes", seconds=60.0) == "yes"
        first = psutil.Process(own._process.pid)
        if end == "kill":
            first.kill()
            first.wait()
        else:
            with pytest.raises(templates.UnboundedError, match="more than 0.2 s"):
                write(STEP, seconds=0.2)
        assert write("yes again", seconds=60.0) == "yes again"
        assert own._process.pid != first.pid
    finally:
        own.end()
    assert not first.is_running()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no alarm there")
@pytest.mark.parametrize("bomb", ["", STEP])
def test_an_answer_that_nobody_took_is_not_the_next_one_s(bomb):
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    own = templates.Renderer()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        if bomb:
            assert own.write([], "yes", {}, seconds=60.0, limit=100) == "yes"
        # Within its start, which is no faster than an interpreter's, or within the bomb.
        signal.setitimer(signal.ITIMER_REAL, 0.2 if bomb else 0.02)
        with pytest.raises(KeyboardInterrupt):
            own.write([], bomb + "one", {}, seconds=60.0, limit=100)
        for text in ("two", "three"):
            assert own.write([], text, {}, seconds=60.0, limit=100) == text
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        own.end()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no alarm there")
def test_who_writes_ends_by_itself_where_all_others_are_gone():
    program = (
        "import sys, threading; from lastword.text.chat_template import Renderer\n"
        "own = Renderer()\n"
        "own.write([], 'yes', {}, limit=9, seconds=9)\n"
        f"threading.Thread(target=own.write, args=([], {STEP!r}, {{}}), daemon=True,"
        " kwargs={'limit': 9, 'seconds': 2}).start()\n"
        "print(own._process.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        writer = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    writer.wait(timeout=60)
