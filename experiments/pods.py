"""Memory of a pod by model: the rule of docs/operations.md, and measurements during attacks.

    python experiments/pods.py

Prints the table there. The last two columns are the results of `attacks.py` for each model
(experiments/results/attacks.MODEL.json): the service's initial memory, and its peak.
"""

import json
import math
from pathlib import Path
from typing import NamedTuple

RESULTS = Path(__file__).parent / "results"
GIGABYTE, GIBIBYTE, MEGABYTE = 1e9, 2**30, 2**20
PROCESS, BATCH = 0.5e9, 0.8e9  # Python with torch; states, activations and logits of one batch
TEMPLATES = 2**29  # the process that renders chat templates


class Model(NamedTuple):
    """The inputs of the rule: parameters, bytes of each, and the size of the head."""

    name: str
    parameters: float
    bytes: int
    vocabulary: int
    width: int

    @property
    def need(self) -> float:
        """Memory in bytes by the rule."""
        head = 4 * self.vocabulary * self.width
        return PROCESS + self.parameters * self.bytes + head + BATCH + TEMPLATES

    @property
    def limit(self) -> float:
        """Memory of a pod in GiB: the rule's, rounded up to the next half."""
        return math.ceil(2 * self.need / GIBIBYTE) / 2


MODELS = (
    Model("lastword/demo-organism", 1.3e6, 4, 1_000, 128),
    Model("lastword/smollm2-135m", 134.5e6, 4, 49_152, 576),
    Model("0.6B, vocabulary 152k", 0.6e9, 2, 151_936, 1024),
    Model("1B, vocabulary 128k", 1.24e9, 2, 128_256, 2048),
    Model("8B, vocabulary 128k", 8.03e9, 2, 128_256, 4096),
)


def measured(name: str) -> tuple[float, float] | None:
    """Return the initial and the peak MB of a model's service, or None without measurement."""
    path = RESULTS / f"attacks.{name.rsplit('/', 1)[-1]}.json"
    if not path.is_file():
        return None
    attacks = json.loads(path.read_text()).values()
    return min(a["first_mb"] for a in attacks), max(a["peak_mb"] for a in attacks)


def main() -> None:
    """Print the table."""
    for model in MODELS:
        dtype = "float32" if model.bytes == 4 else "bfloat16"
        cells = [f"{model.need / GIGABYTE:.1f} GB", f"{model.limit:g} GiB"]
        memory = measured(model.name)
        cells += (
            ["", ""] if memory is None else [f"{m * MEGABYTE / GIGABYTE:.2f} GB" for m in memory]
        )
        name = f"`{model.name}`" if "/" in model.name else model.name
        print(f"| {name} | {dtype} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
