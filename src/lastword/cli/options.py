"""The options that several commands share, each declared once.

A command lists them as parameters. A parameter has the name of its long flag, because the name of
its environment variable is made from it (`LASTWORD_EVAL_LIMIT` for `eval --limit`). Options that go
together are the fields of a dataclass, and a command has one parameter for all of them.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lastword.model.options import Dtype

_model = partial(typer.Option, rich_help_panel="Model")
_answers = partial(typer.Option, rich_help_panel="Answers")
_engine = partial(typer.Option, rich_help_panel="Engine")

_MODEL = (
    "Hub name, folder or GGUF file. lastword/demo-organism is embedded; `lastword get` downloads "
    "lastword/smollm2-135m."
)
Model = Annotated[str, typer.Option(help=_MODEL)]
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
        help="Further settings of the model, such as quantize=nf4, batch_tokens=512, "
        "revision=COMMIT or overflow=truncate (docs/python.md lists all). Repeatable.",
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
class Answers:
    """Options of what answers questions."""

    probe: Annotated[
        list[Path] | None,
        _answers(help="Probe file of `lastword try`; it answers its question. Repeatable."),
    ] = None
    reader: Annotated[
        list[str] | None,
        _answers(
            metavar="MODEL",
            help="Sentence encoder: hub name, folder, minilm or mpnet. Repeatable.",
        ),
    ] = None
    correction: Correction = None
    certificate: Certificate = None
    unlike: Annotated[
        float,
        _answers(
            min=0,
            max=1,
            help="Defer a probe's answer if the text is unlike the labelled ones: its p-value is "
            "below this.",
        ),
    ] = 0.0


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
Describe = Annotated[
    Path | None, typer.Option(help="TOML file that describes each label, for the prompt.")
]
Instructions = Annotated[str | None, typer.Option(help="The question about each text.")]
RowId = Annotated[str | None, typer.Option(help="Column of the row's id; guessed if left out.")]
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
        help="Settings of Ray (docs/engines.md), such as workers=4 or gpus_per_worker=1. "
        "Repeatable.",
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
Columns = Annotated[
    str | None,
    typer.Option(
        help="Columns of hf:NAME: prompt=question,candidates=choices,truthful=answer; also "
        "labels= and id=."
    ),
]
Format = Annotated[
    Literal["md", "csv", "tex"] | None,
    typer.Option(help="Output format. By default a table in a terminal, and md in a pipe."),
]
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


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as typer takes it: a parameter of a dataclass becomes its fields."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if is_dataclass(parameter.annotation)
    }
    options: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        group = groups.get(name)
        parts = [parameter] if group is None else inspect.signature(group).parameters.values()
        # By keyword, so that an option with a default may stand before one without.
        options += [part.replace(kind=inspect.Parameter.KEYWORD_ONLY) for part in parts]

    @wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    run.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def read_pairs(
    option: str, pairs: Iterable[str] | None, readers: Mapping[str, Callable[[str], Any]]
) -> dict[str, Any]:
    """Return the values of a KEY=VALUE option by key.

    Args:
        option: The option's flag.
        pairs: The user's values.
        readers: By key, the function that parses the value or raises ValueError.

    Raises:
        BadParameter: A pair has no `=`, an unknown key or a wrong value.
    """
    values = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not equals or key not in readers:
            raise typer.BadParameter(
                f"{option} {pair}: expected KEY=VALUE with one of {', '.join(readers)}"
            )
        try:
            values[key] = readers[key](value)
        except ValueError as error:
            raise typer.BadParameter(f"{option} {pair}: {error}") from error
    return values


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a function that accepts only one of the choices."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return read


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a function that parses an integer of at least `minimum`."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise ValueError(f"expected a whole number from {minimum} on")
        return int(text)

    return read
