"""A branch: one candidate as token ids."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """A prompt with one candidate as token ids.

    Attributes:
        tokens: The ids of the whole text. The last one is predicted, and never fed.
        boundary: The index at which the candidate begins.
    """

    tokens: tuple[int, ...]
    boundary: int

    @property
    def fed(self) -> tuple[int, ...]:
        """The input ids of the model."""
        return self.tokens[:-1]
