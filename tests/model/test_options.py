"""Options of loading: Python, the command line and frameworks have the same ones."""

import pickle
import sys
from typing import Any

import pytest
from families import save

from lastword import Chat, Theta, Tracer
from lastword.decide.options import DecideOptions
from lastword.errors import InputError, ModelError
from lastword.model import loading
from lastword.model.options import LoadOptions


@pytest.fixture
def untouched(monkeypatch):
    """Make the test fail if anything is read from the disk, the hub or transformers."""

    def fail(*_, **__):
        pytest.fail("the model was looked for")

    for name in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(getattr(loading, name), "from_pretrained", fail)
    monkeypatch.setattr("lastword.model.loading.embedded.load", fail)
    monkeypatch.setattr(loading, "open_local", fail)
    monkeypatch.setattr("lastword.model.loading.hub.download", fail)


DEMO = "lastword/demo-organism"


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        *(
            ("org/name", {name: "x"}, f"from_pretrained has no option {name}: {advice}")
            for name, advice in {
                "dtyp": "did you mean dtype",
                "attn": "did you mean attention",
                "zebra": "it has alias, revision, gguf, device, dtype, head_dtype",
            }.items()
        ),
        *(
            (DEMO, {name: value}, f"on the CPU: leave {name} out")
            for name, value in {"device": "cuda", "dtype": "bfloat16", "revision": "x"}.items()
        ),
        *(
            ("org/name", {"attention": name}, f"attention '{name}': expected auto, sdpa, eager or")
            for name in ("model", "flex_attention", "EAGER", "")
        ),
        ("/nowhere", {}, "no model at /nowhere"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_before_loading(model, options, words, untouched):
    doors = [lambda **options: Tracer.from_pretrained(model, **options)]
    for door in doors + [Tracer.demo] * (model == DEMO):
        with pytest.raises((InputError, ModelError), match=words) as refused:
            door(**options)
        assert "\n" not in str(refused.value)


def test_options_and_keywords_give_the_same_tracer(tmp_path):
    save(tmp_path)
    keywords = {"head_dtype": "model", "overflow": "truncate", "batch_tokens": 77}
    keywords |= {"chat": Chat("s")}
    one = Tracer.from_pretrained(tmp_path, **keywords)
    two = Tracer.from_pretrained(LoadOptions(tmp_path, **keywords))
    assert one.head_dtype == two.head_dtype == "model"
    assert (two.overflow, two.batch_tokens, two.chat) == ("truncate", 77, Chat("s"))
    options = LoadOptions("m", theta=Theta(gamma=-0.5), chat=Chat("s"), device_map={"": "cpu"})
    assert pickle.loads(pickle.dumps(options)) == options


# --- the command line ---


def parsed(monkeypatch, run, *arguments: str) -> LoadOptions:
    """Return the options with which a command loads its model."""
    loaded: list[LoadOptions] = []

    def load(options: LoadOptions) -> None:
        loaded.append(options)
        raise ModelError("nothing is loaded here")

    monkeypatch.setattr(sys.modules["lastword.cli.correct"], "load_decider", load)
    run("correct", "--prompt", "p", "--candidate", "c", *arguments)
    return loaded[0]


def test_options_of_a_command_are_fields_with_the_defaults_of_python(monkeypatch, run, tmp_path):
    assert parsed(monkeypatch, run, "--model", "m") == DecideOptions("m")
    path = tmp_path / "theta.toml"
    path.write_text("gamma = -0.5\n")
    texts = {"alias": "a", "revision": "r", "gguf": "g", "head_dtype": "model"}
    texts |= {"attention": "eager", "quantize": "nf4", "device_map": "auto", "overflow": "truncate"}
    values = {"batch_tokens": 9, "prefix_cache": 5, "invariant": 1.5}
    pairs = texts | values | {"allow_bin": "true", "theta": path}
    loads = [part for name, value in pairs.items() for part in ("--load", f"{name}={value}")]
    options = "--device cpu --dtype bfloat16 --chat-template --system s --trust-remote-code"
    expected: Any = texts | values | {"device": "cpu", "dtype": "bfloat16", "allow_bin": True}
    expected |= {"theta": Theta(gamma=-0.5), "chat": Chat("s"), "trust_remote_code": True}
    asked = parsed(monkeypatch, run, "--model", "m", *options.split(), *loads)
    assert asked == DecideOptions("m", **expected)


@pytest.mark.parametrize(
    "pair", ["dtyp=float32", "batch_tokens", "batch_tokens=0", "quantize=int3"]
)
def test_an_invalid_pair_is_refused(run, pair):
    code, _, err = run("correct", "--model", "m", "--load", pair)
    assert code == 2 and f"--load {pair}" in err and "expected" in err


def test_an_environment_variable_may_have_several_options_but_no_unsafe_ones(monkeypatch, run):
    monkeypatch.setenv("LASTWORD_CORRECT_LOAD", "batch_tokens=9 prefix_cache=5")
    options = parsed(monkeypatch, run, "--model", "m")
    assert (options.batch_tokens, options.prefix_cache) == (9, 5)
    monkeypatch.setenv("LASTWORD_CORRECT_LOAD", "allow_bin=true")
    code, _, err = run("correct", "--model", "m")
    assert code == 2 and "allow_bin" in err
