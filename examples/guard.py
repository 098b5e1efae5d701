"""Guard a stream of answers: where correction disagrees with the model, keep the reasons.

    python examples/guard.py OUT                   # the embedded model
    python examples/guard.py OUT Qwen/Qwen3-0.6B

Questions arrive one after another from a generator and are read no further ahead than they are
needed. Every disagreement leaves an HTML page in OUT with both answers and the operator.
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

from lastword import Decision, Item, Tracer
from lastword.lab.demo import items


def arriving() -> Iterator[Item]:
    """Stands in for a queue: questions of the demo's benchmark, as they come."""
    yield from items()[:24]


def keep(decision: Decision, folder: Path, place: int) -> Path:
    """Write the page of one disagreement."""
    path = folder / f"{place:03}.html"
    page = f"<!doctype html><meta charset='utf-8'><p>{escape(repr(decision))}</p>"
    path.write_text(page, encoding="utf-8")
    return path


def main(out: str, *names: str) -> None:
    """Answer the stream; keep what changed."""
    tracer = Tracer.from_pretrained(names[0]) if names else Tracer.demo()
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    answered = changed = 0
    for decision in tracer.correct_many(arriving(), read="all", ahead=8):
        answered += 1
        if decision.corrected:
            changed += 1
            path = keep(decision, folder, answered)
            print(f"{path}: {decision.base_answer} -> {decision.answer} ({decision.operator})")
    print(f"{answered} answered, {changed} corrected")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: guard.py OUT [MODEL]")
    main(*sys.argv[1:])
