"""What is said of a table of examples: its columns and its job; light, as the command needs it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Named:
    """Which columns are meant, and what else is told of the job.

    Attributes:
        text: Column of the text; guessed if left out, as is that of the label.
        label: Column of the right answer.
        choices: Column of each row's own options, or a file of the options of all; if left out, the
            labels that occur.
        describe: TOML file with a description a label, for the prompt.
        instructions: The question that is asked of each text.
    """

    text: str | None = None
    label: str | None = None
    choices: str | None = None
    describe: Path | None = None
    instructions: str | None = None
