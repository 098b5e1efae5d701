"""A branch: one candidate as token ids."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Branch:
    """One candidate as the model sees it: the whole text's ids, and where the candidate begins.

    The last token is predicted and never fed.
    """

    tokens: tuple[int, ...]
    boundary: int

    @property
    def fed(self) -> tuple[int, ...]:
        """Return the ids that the model reads."""
        return self.tokens[:-1]
