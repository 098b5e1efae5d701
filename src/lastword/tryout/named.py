"""The columns of a table of examples and its job, as a user names them; light, for the command."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated


@dataclass(frozen=True)
class Named:
    """The columns of a table, and the job."""

    text: Annotated[
        str | None, "Column of the text; guessed if left out, as is that of the label."
    ] = None
    label: Annotated[str | None, "Column of the right answer."] = None
    choices: Annotated[
        str | None,
        "Column of each row's own options, or a file of the options of all; if left out, the "
        "labels that occur.",
    ] = None
    describe: Annotated[Path | None, "TOML file with a description a label, for the prompt."] = None
    instructions: Annotated[str | None, "The question about each text."] = None
    id: Annotated[str | None, "Column of each row's name; guessed if left out."] = None
    unlabelled: Annotated[
        Path | None, "Table of more texts without labels, for the self-taught probe."
    ] = None
    tidy: Annotated[bool, "Join labels that differ only in case or spaces."] = False
