"""The options that several commands share, each declared once.

A command lists them as parameters. A parameter has the name of its long flag, because the name of
its environment variable is made from it (`LASTWORD_EVAL_LIMIT` for `eval --limit`). Options that go
together are the fields of a dataclass, and a command has one parameter for all of them.
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from lastword.model.options import Dtype, LoadOptions

_model = partial(typer.Option, rich_help_panel="Model")
_answers = partial(typer.Option, rich_help_panel="Answers")
_engine = partial(typer.Option, rich_help_panel="Engine")

_MODEL = (
    "Hub name, folder or GGUF file. lastword/demo-organism is embedded; `lastword get` downloads "
    "lastword/smollm2-135m."
)
Model = Annotated[str, typer.Option(help=_MODEL)]
ModelOrNone = Annotated[
    str | None,
    typer.Option(help=f"{_MODEL} Without it, sentence encoders do the work.", show_default=False),
]
Models = Annotated[list[str], typer.Option(help=f"{_MODEL} Repeatable.")]
Device = Annotated[str, _model(help="auto, cpu, cuda, cuda:1 or mps.")]
DataType = Annotated[
    Dtype,
    _model(
        help="Data type of the weights. `auto` takes that of a certificate or probe, else the "
        "checkpoint's, but float32 instead of float16 on the CPU."
    ),
]
RemoteCode = Annotated[
    bool,
    _model(
        "--trust-remote-code",
        help="Run Python code from the checkpoint.",
        allow_from_autoenv=False,  # another program may have set it
    ),
]


# The keys of --load are the fields of `LoadOptions` without an option of their own.
_OPTIONS = ("model", "device", "dtype", "chat", "trust_remote_code")
LOAD = tuple(each.name for each in fields(LoadOptions) if each.name not in _OPTIONS)
_DAY = "Date in the chat template, such as 2026-01-31."


def attributes(of: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a dataclass and its bases say about each field."""
    texts: dict[str, str] = {}
    for kind in reversed(of.__mro__):
        found = re.findall(r"^ +(\w+): ((?:.+\n?)+?)(?=^ +\w+: |\n|\Z)", kind.__doc__ or "", re.M)
        texts |= {name: " ".join(text.split()) for name, text in found}
    return texts


def keys(of: type[Any], names: Iterable[str]) -> str:
    """Return the keys of a KEY=VALUE option with their meaning, for its help."""
    texts = attributes(of)
    return " ".join(f"{name}: {texts[name]}" for name in names)


def _refuse_from_variable(context: Any, option: Any, load: list[str] | None) -> list[str] | None:
    """Refuse allow_bin from an environment variable, which another program may have set."""
    source = context.get_parameter_source(option.name)
    if source is not None and source.name == "ENVIRONMENT":
        if any(pair.startswith("allow_bin=") for pair in load or ()):
            raise typer.BadParameter("allow_bin is not read from a variable: pass it as an option")
    return load


Load = Annotated[
    list[str] | None,
    _model(
        metavar="KEY=VALUE",
        callback=_refuse_from_variable,
        help=f"Further settings of the model. Repeatable. {keys(LoadOptions, LOAD)} date: {_DAY}",
    ),
]


@dataclass(frozen=True)
class Loading:
    """Options of loading a model."""

    device: Device = "auto"
    dtype: DataType = "auto"
    chat_template: Annotated[
        bool, _model("--chat-template", help="Put prompts into the model's chat template.")
    ] = False
    system: Annotated[str | None, _model(help="System message for --chat-template.")] = None
    trust_remote_code: RemoteCode = False
    load: Load = None


Certificate = Annotated[
    Path | None,
    _answers(
        help="Certificate of `lastword try` or `lastword certify`: the overrides that may be "
        "applied."
    ),
]
Correction = Annotated[
    str | None,
    _answers(
        help="Correction to apply: trace, or a method listed by `lastword compare --list`, such as "
        "pmi@0.5. By default items are corrected by trace, and questions get the model's answers."
    ),
]


@dataclass(frozen=True)
class AnswerOptions:
    """Options of what answers questions."""

    probe: Annotated[
        list[Path] | None,
        _answers(help="Probe file of `lastword try`; it answers its question. Repeatable."),
    ] = None
    encoder: Annotated[
        list[str] | None,
        _answers(
            metavar="MODEL",
            help="Sentence encoder: hub name, folder, minilm or mpnet. Repeatable.",
        ),
    ] = None
    correction: Correction = None
    certificate: Certificate = None
    novelty: Annotated[
        float,
        _answers(
            min=0,
            max=1,
            help="Defer a probe's answer if the p-value of its text, of being like the labelled "
            "texts, is below this; 0 is off.",
        ),
    ] = 0.0


def _read_folder(context: Any, argument: Any, folder: Path | None) -> Path | None:
    """Take the defaults of the options from the `lastword.toml` of a folder."""
    if folder is None:
        return None
    path = folder / "lastword.toml"
    if not path.is_file():
        raise typer.BadParameter(
            f"{path} is missing: `lastword try --out` and `lastword label` write it"
        )
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    for name in {"certificate", "questions"} & values.keys():
        values[name] = str(folder / values[name])
    if "probe" in values:
        values["probe"] = [str(folder / name) for name in values["probe"]]
    context.default_map = values
    return folder


Trial = Annotated[
    Path | None,
    typer.Argument(
        metavar="FOLDER",
        is_eager=True,  # before the options, whose defaults it sets
        callback=_read_folder,
        help="Folder of `lastword try` or `lastword label`: its lastword.toml has the model and "
        "the other options.",
    ),
]
Contestants = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL",
        help="Sentence encoder to compare too: hub name, folder, minilm or mpnet. Repeatable. "
        "Default: minilm, if `lastword get minilm` has downloaded it.",
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(help="Encoding of the table, such as cp1252 or gb18030. Default: UTF-8."),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text; guessed if left out.")]
IdColumn = Annotated[str | None, typer.Option(help="Column of the row's id; guessed if left out.")]
Describe = Annotated[
    Path | None, typer.Option(help="TOML file that describes each label, for the prompt.")
]
Instructions = Annotated[str | None, typer.Option(help="The question about each text.")]
Group = Annotated[
    str | None,
    typer.Option(help="Column that dependent texts share, such as an author. Default: `group`."),
]
Alpha = Annotated[
    float, typer.Option(help="Maximum share of answers broken, for --promise breaks.")
]
Delta = Annotated[float, typer.Option(help="Maximum probability that the guarantee does not hold.")]
Promise = Annotated[
    Literal["gain", "breaks"],
    typer.Option(
        help="gain: accuracy higher than the model's. breaks: also, at most alpha of all "
        "answers broken."
    ),
]
Error = Annotated[
    float | None,
    typer.Option(help="Promise: at most this share of the given answers is wrong, such as 0.1."),
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Download the encoder minilm (83 MB) without a question.")
]
Template = Annotated[
    str | None, typer.Option(help="decide/plain, decide/listed, decide/chat, or a Jinja file.")
]

EngineOrRay = Annotated[
    Literal["local", "ray"],
    _engine(help="Run the model in this process, or in Ray workers."),
]
EngineOptions = Annotated[
    list[str] | None,
    _engine(
        metavar="KEY=VALUE",
        help="Settings of Ray: address, workers, gpus_per_worker, cpus_per_worker, such as "
        "workers=4. Repeatable.",
    ),
]

Data = Annotated[
    Path | None,
    typer.Option(help="File or folder with the benchmark's data; from the hub if left out."),
]
BenchmarkTemplate = Annotated[str | None, typer.Option(help="BENCHMARK/VARIANT or a Jinja file.")]
Seed = Annotated[
    int | None, typer.Option(help="Draw the questions of --limit at random, with this seed.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Number of questions; a pair counts as one.")
]
Format = Annotated[Literal["md", "csv"] | None, typer.Option(help="Output format; default: md.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def local(path: Path | None) -> Path | None:
    """Refuse a URL, which would name a new folder here."""
    if path is not None and re.match(r"\w{2,}:/", path.as_posix()):
        raise typer.BadParameter(f"expected a folder of this machine, not {path}")
    return path


Out = Annotated[Path, typer.Option(metavar="PATH", callback=local, help="Folder for the records.")]
Runs = Annotated[
    Path, typer.Argument(metavar="PATH", help="Results folder from `lastword eval`, at any level.")
]


@dataclass(frozen=True)
class Fields:
    """Mark of a library's dataclass in a command's signature: its fields become options.

    Their help is that of the docstring's `Attributes`. `settings` has further arguments of
    `typer.Option` by field; fields to `leave_out` keep their default.
    """

    panel: str | None = None
    leave_out: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def options(self, of: type[Any]) -> dict[str, inspect.Parameter]:
        """Return the options of a dataclass, by field."""
        texts, options = attributes(of), {}
        for each in fields(of):
            if each.name in self.leave_out:
                continue
            name = each.name.removesuffix("_seconds")
            more: dict[str, Any] = {"rich_help_panel": self.panel, "help": texts[each.name]}
            more |= self.settings.get(each.name, {})
            flag = f"--{name.replace('_', '-')}"
            # Without the declaration, typer gives a boolean a second flag, `--no-NAME`.
            option = typer.Option(flag, **more) if each.type is bool else typer.Option(**more)
            kind = str | None if each.type == str | Path | None else each.type  # typer takes one
            options[each.name] = inspect.Parameter(
                name, _BY_NAME, default=each.default, annotation=Annotated[kind, option]
            )
        return options


# By keyword, so that an option with a default may stand before one without.
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it: a parameter of a dataclass becomes its fields."""
    signature = inspect.signature(command)
    groups: dict[str, tuple[Any, dict[str, str]]] = {}  # by parameter: class, option by field
    options: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        kind: Any
        kind, *marks = get_args(parameter.annotation) or (parameter.annotation,)
        if not (isinstance(kind, type) and is_dataclass(kind)):
            options.append(parameter)
            continue
        parts = marks[0].options(kind) if marks else dict(inspect.signature(kind).parameters)
        groups[name] = kind, {each: part.name for each, part in parts.items()}
        options += parts.values()
    options = [option.replace(kind=_BY_NAME) for option in options]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, (kind, names) in groups.items():
            values[name] = kind(**{each: values.pop(option) for each, option in names.items()})
        command(**values)

    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def read_pairs(
    option: str, pairs: Iterable[str] | None, of: type[Any], names: Collection[str]
) -> dict[str, Any]:
    """Return the values of a KEY=VALUE option by key, which are fields of a dataclass."""
    values: dict[str, Any] = {}
    types: dict[str, Any] = {each.name: each.type for each in fields(of)}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or key not in names:
            raise typer.BadParameter(
                f"{option} {pair}: expected KEY=VALUE with one of {', '.join(names)}"
            )
        from pydantic import TypeAdapter, ValidationError

        try:
            values[key] = TypeAdapter(types[key]).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"].removeprefix("Input should be ")
            raise typer.BadParameter(f"{option} {pair}: expected {reason}") from error
    return values
