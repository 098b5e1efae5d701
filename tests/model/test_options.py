"""What loads a model stands once: Python, the command line and the frameworks take the same."""

import inspect
import pickle
from dataclasses import fields

import pytest
import typer
from families import save
from typer.testing import CliRunner

from lastword import Chat, Theta, Tracer
from lastword.cli.groups import flattened
from lastword.cli.model import Model, Models
from lastword.errors import InputError, ModelError
from lastword.model import loading
from lastword.model.options import LoadOptions

NAMES = [f.name for f in fields(LoadOptions)]


@pytest.fixture
def untouched(monkeypatch):
    """Nothing is asked of the disk, the hub or transformers while the test runs."""

    def fail(*_, **__):
        pytest.fail("the model was looked for")

    for name in ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"):
        monkeypatch.setattr(getattr(loading, name), "from_pretrained", fail)
    monkeypatch.setattr("lastword.model.loading.embedded.load", fail)
    monkeypatch.setattr(loading, "open_local", fail)
    monkeypatch.setattr("lastword.model.loading.hub.find_commit", fail)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("dtyp", "did you mean dtype?"),
        ("attn", "did you mean attention?"),
        ("head_dtypes", "did you mean head_dtype?"),
        ("torch_dtype", "dtype is meant"),
        ("load_in_4bit", "quantize='nf4' is meant"),
        ("attn_implementation", "attention is meant"),
        ("token", "HF_TOKEN"),
        ("cache_dir", "HF_HOME"),
        ("gguf_file", "gguf is meant"),
        ("zebra", "it has alias, revision, gguf, device, dtype, head_dtype"),
        ("source", "it has alias, revision"),
    ],
)
def test_a_keyword_that_is_none_is_refused_before_anything_is_loaded(name, meant, untouched):
    calls = {
        "Tracer.from_pretrained": lambda **given: Tracer.from_pretrained("org/name", **given),
        "Tracer.demo": Tracer.demo,
        "LoadOptions": lambda **given: LoadOptions("org/name", **given),
    }
    for function, call in calls.items():
        with pytest.raises(InputError) as refused:
            call(**{name: "x"})
        assert str(refused.value).startswith(f"{function} has no option {name}: ")
        assert meant in str(refused.value) and "\n" not in str(refused.value)


def test_the_harness_refuses_such_a_keyword_too(untouched):
    pytest.importorskip("lm_eval")
    from lastword.integrations.lm_eval import CorrectedLM

    with pytest.raises(InputError, match="CorrectedLM has no option dtyp: did you mean dtype"):
        CorrectedLM("org/name", dtyp="float32")


@pytest.mark.parametrize("option", [{"device": "cuda"}, {"dtype": "bfloat16"}, {"revision": "x"}])
def test_what_would_change_nothing_of_an_embedded_model_is_refused(option, untouched):
    for call in (Tracer.demo, lambda **o: Tracer.from_pretrained("lastword/demo-organism", **o)):
        with pytest.raises(InputError, match=f"on the CPU: leave {next(iter(option))} out"):
            call(**option)


def test_python_takes_the_fields_and_its_help_tells_of_each():
    signature = inspect.signature(Tracer.from_pretrained)
    assert list(signature.parameters) == NAMES
    for f in fields(LoadOptions)[1:]:
        assert signature.parameters[f.name].default == f.default
        assert signature.parameters[f.name].kind is inspect.Parameter.KEYWORD_ONLY
    told = inspect.getdoc(Tracer.from_pretrained)
    assert all(f"\n    {name}: " in told for name in NAMES)
    assert told.index("Args:") < told.index("    model: ") < told.index("Raises:")


def test_the_object_and_the_keywords_make_the_same_tracer(tmp_path):
    save(tmp_path)
    given = {"head_dtype": "model", "overflow": "truncate", "batch_tokens": 77, "chat": Chat("s")}
    one = Tracer.from_pretrained(tmp_path, **given)
    two = Tracer.from_pretrained(LoadOptions(tmp_path, **given))
    assert one.head_dtype == two.head_dtype == "model"
    assert (two.overflow, two.batch_tokens, two.chat) == ("truncate", 77, Chat("s"))
    with pytest.raises(ModelError, match="no model at /nowhere"):
        Tracer.from_pretrained(LoadOptions("/nowhere"))
    options = LoadOptions("m", theta=Theta(gamma=-0.5), chat=Chat("s"), device_map={"": "cpu"})
    assert pickle.loads(pickle.dumps(options)) == options


# --- the command line ---


def parsed(annotation, *arguments: str):
    """What a command gets for these arguments, and the output where it gets nothing."""
    seen = []

    def command(model: annotation) -> None:
        seen.append(model)

    app = typer.Typer()
    app.command()(flattened(command))
    result = CliRunner().invoke(app, arguments)
    return seen[0] if seen else (result.exit_code, result.output)


def test_every_field_is_an_option_with_its_default():
    def command(model: Model) -> None:
        """Take a model."""

    taken = inspect.signature(flattened(command)).parameters
    assert [n for n in taken if n != "system"] == NAMES
    assert parsed(Model, "--model", "m") == LoadOptions("m")


def test_what_the_command_line_writes_lands_in_the_field(tmp_path):
    path = tmp_path / "theta.toml"
    path.write_text("gamma = -0.5\n")
    arguments = (
        "--model m --revision r --device cpu --dtype bfloat16 --head-dtype model --attn eager "
        "--quantize nf4 --device-map auto --batch-tokens 9 --prefix-cache 5 --invariant 1.5 "
        "--chat-template --system s --overflow truncate --allow-bin --trust-remote-code "
        f"--theta {path}"
    )
    assert parsed(Model, *arguments.split()) == LoadOptions(
        "m",
        revision="r",
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


def test_several_models_share_the_options():
    both = parsed(Models, "--model", "a", "--model", "b", "--dtype", "float32")
    assert both == [LoadOptions("a", dtype="float32"), LoadOptions("b", dtype="float32")]
    assert parsed(Model, "--model", "m", "--system", "s")[0] == 2
