"""A task whose choices are corrected: `inspect eval goods.py --model lastword/NAME`."""

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import choice
from lastword_inspect import corrected_choice


@task
def goods() -> Task:
    """Ask one question of the embedded world."""
    sample = Sample(
        input="Which goods come from Baevwick?",
        choices=["green wool combs", "pale cedar boats", "clay lamps"],
        target="B",
    )
    return Task(dataset=[sample], solver=corrected_choice(), scorer=choice())
