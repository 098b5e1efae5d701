"""Choose the data type of a trial: bfloat16 where it is faster and gives the same answers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lastword.decide.decider import Decider
from lastword.decide.options import DecideOptions
from lastword.decide.tracer import Tracer
from lastword.errors import TooLargeError
from lastword.model.precision import faster_in_bfloat16
from lastword.records.decision import Decision
from lastword.records.info import RUN_FILE, read_run
from lastword.text.items import Item
from lastword.tryout.answers import records_folder
from lastword.tryout.labels import Labels
from lastword.tryout.run import template_for

_TOGETHER = 16  # rows; the comparison ends with the first group in which an answer differs


def with_faster_dtype(
    decider: Decider,
    options: DecideOptions,
    labels: Labels,
    template: str | None,
    out: Path | None,
) -> tuple[Decider, Labels]:
    """Return the decider of a trial in the data type that it should run in.

    With `dtype="auto"`, a model in float32 on a processor that is faster in bfloat16 is loaded a
    second time, in bfloat16, and both answer the labelled rows. The second one is returned if all
    answers are equal. Records of these rows in `out` keep the data type that they were made in.

    Args:
        decider: The model as `options` load it.
        options: The options of the load.
        labels: The labelled rows.
        template: The prompt template's name; None for the model's default.
        out: Folder of the trial's records.

    Returns:
        The decider, and the labels with a note on the comparison.
    """
    tracer = decider.tracer
    backbone = tracer.backbone
    if options.dtype != "auto" or backbone.dtype != torch.float32:
        return decider, labels
    prompts = template_for(tracer, template)

    def in_bfloat16() -> Decider:
        return Decider.from_pretrained(replace(options, dtype="bfloat16"))

    if out is not None:
        folder = records_folder(out, tracer, labels, prompts)
        if (folder / RUN_FILE).exists():
            same = read_run(folder).get("dtype") != "bfloat16"
            return decider if same else in_bfloat16(), labels
    if not faster_in_bfloat16(backbone):
        return decider, labels
    try:
        half = in_bfloat16()
    except TooLargeError:
        return decider, labels
    items = labels.items(prompts)
    row = _first_difference(tracer, half.tracer, items)
    note = (
        "the model runs in bfloat16: it is faster here, and gives every labelled row the same "
        "answer"
        if row is None
        else f"the model runs in float32: bfloat16 is faster here, but answers row {row} "
        "differently (--dtype bfloat16 uses it anyway)"
    )
    labels = replace(labels, notes=(*labels.notes, note))
    return (half if row is None else decider), labels


def _first_difference(ours: Tracer, other: Tracer, items: Sequence[Item]) -> str | None:
    """Return the name of the first item that two tracers answer differently; None if none is."""
    for start in range(0, len(items), _TOGETHER):
        some = items[start : start + _TOGETHER]
        for item, *answers in zip(some, _answers(ours, some), _answers(other, some), strict=True):
            if answers[0] != answers[1]:
                return str(item.id)
    return None


def _answers(tracer: Tracer, items: Sequence[Item]) -> list[int | None]:
    """Return the place of the model's answer to each item; None if it cannot be read."""
    read = tracer.correct_many(items, read="base", blind="none", on_error="return")
    return [one.base_index if isinstance(one, Decision) else None for one in read]
