"""Options of loading: Python, the command line and frameworks have the same ones."""

import pickle
import sys

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


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("dtyp", "did you mean dtype?"),
        ("attn", "did you mean attention?"),
        ("head_dtypes", "did you mean head_dtype?"),
        ("zebra", "it has alias, revision, gguf, device, dtype, head_dtype"),
        ("source", "it has alias, revision"),
    ],
)
def test_unknown_keywords_are_refused_before_loading(name, advice, untouched):
    calls = {
        "Tracer.from_pretrained": lambda **option: Tracer.from_pretrained("org/name", **option),
        "Tracer.demo": Tracer.demo,
    }
    for function, call in calls.items():
        with pytest.raises(InputError) as refused:
            call(**{name: "x"})
        assert str(refused.value).startswith(f"{function} has no option {name}: ")
        assert advice in str(refused.value) and "\n" not in str(refused.value)


def test_the_harness_refuses_unknown_keywords(untouched):
    pytest.importorskip("lm_eval")
    from lastword.integrations.lm_eval import CorrectedLM

    with pytest.raises(InputError, match="from_pretrained has no option dtyp: did you mean dtype"):
        CorrectedLM("org/name", dtyp="float32")


@pytest.mark.parametrize("option", [{"device": "cuda"}, {"dtype": "bfloat16"}, {"revision": "x"}])
def test_options_without_effect_on_an_embedded_model_are_refused(option, untouched):
    for call in (Tracer.demo, lambda **o: Tracer.from_pretrained("lastword/demo-organism", **o)):
        with pytest.raises(InputError, match=f"on the CPU: leave {next(iter(option))} out"):
            call(**option)


def test_options_and_keywords_give_the_same_tracer(tmp_path):
    save(tmp_path)
    keywords = {
        "head_dtype": "model",
        "overflow": "truncate",
        "batch_tokens": 77,
        "chat": Chat("s"),
    }
    one = Tracer.from_pretrained(tmp_path, **keywords)
    two = Tracer.from_pretrained(LoadOptions(tmp_path, **keywords))
    assert one.head_dtype == two.head_dtype == "model"
    assert (two.overflow, two.batch_tokens, two.chat) == ("truncate", 77, Chat("s"))
    with pytest.raises(ModelError, match="no model at /nowhere"):
        Tracer.from_pretrained(LoadOptions("/nowhere"))
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


def test_a_command_has_the_defaults_of_python(monkeypatch, run):
    assert parsed(monkeypatch, run, "--model", "m") == DecideOptions("m")


def test_options_of_a_command_are_fields(monkeypatch, run, tmp_path):
    path = tmp_path / "theta.toml"
    path.write_text("gamma = -0.5\n")
    pairs = (
        "alias=a revision=r gguf=g head_dtype=model attention=eager quantize=nf4 "
        "device_map=auto batch_tokens=9 prefix_cache=5 invariant=1.5 "
        f"overflow=truncate allow_bin=true theta={path}"
    )
    loads = [part for pair in pairs.split() for part in ("--load", pair)]
    options = "--device cpu --dtype bfloat16 --chat-template --system s --trust-remote-code"
    assert parsed(monkeypatch, run, "--model", "m", *options.split(), *loads) == DecideOptions(
        "m",
        alias="a",
        revision="r",
        gguf="g",
        device="cpu",
        dtype="bfloat16",
        head_dtype="model",
        attention="eager",
        quantize="nf4",
        device_map="auto",
        batch_tokens=9,
        prefix_cache=5,
        theta=Theta(gamma=-0.5),
        invariant=1.5,
        chat=Chat("s"),
        overflow="truncate",
        allow_bin=True,
        trust_remote_code=True,
    )


def test_an_unknown_attention_is_refused(untouched):
    for name in ("model", "flex_attention", "EAGER", ""):
        with pytest.raises(InputError, match=f"attention '{name}': expected auto, sdpa, eager or"):
            Tracer.from_pretrained("org/name", attention=name)


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
