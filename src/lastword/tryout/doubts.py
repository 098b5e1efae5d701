"""Doubts about labelled rows: labels that may be wrong."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lastword.files.cells import spelling
from lastword.files.wording import counted

_SHOWN = 3  # number of rows that a note lists; the others are only counted


def doubts(texts: Mapping[str, str], truths: Mapping[str, str]) -> list[str]:
    """Return notes about labels that may be wrong, from the rows' texts and labels by id."""
    counts, spellings = Counter(truths.values()), dict[str, list[str]]()
    for label, count in counts.most_common():
        spellings.setdefault(spelling(label), []).append(f"`{label}` ({counted(count, 'row')})")
    rows: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        rows.setdefault(" ".join(text.split()), {}).setdefault(truths[name], name)
    found = {
        "labels that look like one class": [
            " and ".join(labels) for labels in spellings.values() if len(labels) > 1
        ],
        "classes of one row": [
            f"`{label}` (row {name})" for name, label in truths.items() if counts[label] == 1
        ],
        "one text with two labels": [
            " and ".join(f"row {name} (`{label}`)" for label, name in names.items())
            for names in rows.values()
            if len(names) > 1
        ],
    }
    return [f"{what}: {_first_few(some)}" for what, some in found.items() if some]


def left_out(faults: Sequence[str]) -> list[str]:
    """Return a note about rows that are left out."""
    return [f"left out {counted(len(faults), 'row')}: {_first_few(faults)}"] if faults else []


def _first_few(things: Sequence[str]) -> str:
    more = len(things) - _SHOWN
    return "; ".join([*things[:_SHOWN], *([f"and {more} more"] if more > 0 else [])])
