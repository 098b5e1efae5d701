"""The columns of a table of examples and its task, as a user names them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Named:
    """The columns of a table, and the task.

    Attributes:
        text: Column of the text; guessed if left out.
        label: Column of the right answer; guessed if left out.
        choices: Column with each row's options, or a file with the options of all rows. Default:
            the labels that occur.
        describe: TOML file that describes each label, for the prompt.
        instructions: The question about each text.
        id: Column of the row's name; guessed if left out.
        tidy: Join labels that differ only in case, spaces, Unicode form, or as 1 and 1.0 do.
        encoding: Of the file's text; UTF-8 if left out.
        group: Column of what makes texts depend on each other; `group` if left out.
    """

    text: str | None = None
    label: str | None = None
    choices: str | None = None
    describe: Path | None = None
    instructions: str | None = None
    id: str | None = None
    tidy: bool = False
    encoding: str | None = None
    group: str | None = None
