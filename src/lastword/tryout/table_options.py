"""The columns of a table of examples and its task, as the user gives them."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TableOptions:
    """The columns of a table, and the task.

    Attributes:
        text: Column of the text; guessed by default.
        label: Column of the right answer; guessed by default.
        choices: Column with each row's options, or a file with the options of all rows. Default:
            the labels in the table.
        describe: TOML file that describes each label, for the prompt.
        instructions: The question about each text.
        id: Column of the row's name; guessed by default.
        encoding: Encoding of the file's text; UTF-8 by default.
        group: Column whose equal values mark dependent texts; `group` by default.
    """

    text: str | None = None
    label: str | None = None
    choices: str | None = None
    describe: str | Path | None = None
    instructions: str | None = None
    id: str | None = None
    encoding: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class Columns(TableOptions):
    """The options of a table whose text and label columns were found."""

    text: str = ""
    label: str = ""
