"""Gates: the comparisons that lead to a decision."""

from dataclasses import dataclass
from typing import Any, Literal

from lastword.files.strict_json import strict

Regime = Literal["scalar", "candidate-space"]


@dataclass(frozen=True)
class Gate:
    """One comparison of the rule; `None` if the decision did not need it (method, section 9)."""

    value: float | bool | None
    threshold: float | bool
    holds: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; a value that is not finite becomes a string."""
        return {"value": strict(self.value), "threshold": self.threshold, "holds": self.holds}
