"""What decoding by the rule and by its peers says to the demo's open questions (experimental).

    python experiments/decoding.py [--model organism] [--every 3] [--top 8]

Greedy; an answer is right where it begins with the fact's truth, popular where it begins with one
of its popular errors. The result is kept in experiments/results/decoding.json, by model.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from lastword.demo import Fact, open_questions
from lastword.generation.decoding import DECODERS, TOP, generate
from lastword.tracer import Tracer

RESULTS = Path(__file__).parent / "results" / "decoding.json"
KINDS = ("clean", "contested", "overwritten", "revised")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="organism")
    parser.add_argument("--every", type=int, default=3, help="of how many questions one is asked")
    parser.add_argument("--top", type=int, default=TOP)
    options = parser.parse_args()
    tracer = Tracer.demo(options.model)
    asked = open_questions()[:: options.every]
    result = {decode: row(tracer, asked, decode, options.top) for decode in DECODERS}
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    known[options.model] = {"questions": len(asked), "top": options.top, **result}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    for decode, counts in result.items():
        print(decode, json.dumps(counts))


def row(
    tracer: Tracer, asked: list[tuple[str, Fact]], decode: str, top: int
) -> dict[str, dict[str, int]]:
    """Answers by kind of fact: right, popular error, something else."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for prompt, fact in asked:
        text = generate(tracer, prompt, decode, top=top, max_new_tokens=8).strip()
        counts[fact.kind][judged(text, fact)] += 1
    return {kind: {k: c[k] for k in ("right", "popular", "else")} for kind, c in counts.items()}


def judged(text: str, fact: Any) -> str:
    if text.startswith(fact.truth):
        return "right"
    return "popular" if text.startswith(fact.errors) else "else"


if __name__ == "__main__":
    main()
