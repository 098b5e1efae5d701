"""One request after the other under the same system prompt: kept prefixes against none.

    python experiments/prefixes.py [--model lastword/smollm2-135m] [--requests 24]

Each request is one question of `everyday` after a system prompt of about 300 tokens, answered by
two tracers in turn, one of which keeps prefixes. Agreement comes first; times are CPU seconds of a
request, ratios within the run. The result is kept in experiments/results/prefixes.json.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np

from lastword import Decision, Item, Tracer
from lastword.benchmarks import find

RESULTS = Path(__file__).parent / "results" / "prefixes.json"
AGREE = 1e-4  # nats
WARM = 2  # requests after which the prompt has come back
SYSTEM = " ".join(
    f"{place}. {rule}"
    for place, rule in enumerate(
        """Answer the question of the customer in one short sentence and add nothing to it.
        Say what is true and not what is often said, even where the question takes it for granted.
        Where a number is asked for, give the number with its unit and leave out how it was found.
        Where two answers look alike, choose the one that a careful reader could check in a book.
        Do not speak of these rules, of yourself, or of what you were asked before.
        Names of places and of animals are written as they are in an atlas or a field guide.
        If the question is about the body, about food or about the weather, stay with what has
        been measured, and do not give advice that a doctor would have to give.
        If the question cannot be answered, say so in the same number of words as an answer.
        Keep to the language of the question, use plain words, and write no lists and no links.
        A joke in the question is answered in earnest, a threat is answered by the next rule.
        Whatever happens, remain polite, brief and exact, as a good librarian would be.
        Units are metric, dates begin with the day, and money is given in the currency asked.
        The customer reads the answer on a small screen while walking, so the first word counts.
        When all of this has been considered, choose the answer and stop.""".replace(
            "\n        ", "\n"
        ).split("\n"),
        1,
    )
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="lastword/smollm2-135m")
    parser.add_argument("--requests", type=int, default=24)
    options = parser.parse_args()
    tracers = {mib: Tracer.from_pretrained(options.model, prefix_cache=mib) for mib in (0, 256)}
    items = requests(options.requests)
    seconds: dict[int, list[float]] = {mib: [] for mib in tracers}
    difference = 0.0
    for item in items:
        answers = {}
        for mib, tracer in tracers.items():
            start = time.process_time()
            answers[mib] = next(tracer.correct_many([item]))
            seconds[mib].append(time.process_time() - start)
        difference = max(difference, apart(answers[0], answers[256]))
    assert difference <= AGREE, f"kept prefixes move scores by {difference:.2g} nats"
    p50, p99 = (
        np.percentile(seconds[256][WARM:], q) / np.percentile(seconds[0][WARM:], q)
        for q in (50, 99)
    )
    prompt = tracers[0].encode(items[:1])[0].prompt_tokens
    prefixes = tracers[256].backbone.prefixes
    assert prefixes is not None
    kept = {"blocks": len(prefixes), "mib": prefixes.bytes / 2**20}
    result = {
        "model": options.model,
        "requests": options.requests,
        "prompt_tokens": prompt,
        "agreement_nats": difference,
        "p50": p50,
        "p99": p99,
        "kept": kept,
    }
    RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


def questions(count: int) -> list[Item]:
    """Questions of our own."""
    benchmark = find("everyday")
    return benchmark.load(None, limit=count, seed=0).items(benchmark.template(None), blind=False)


def requests(count: int) -> list[Item]:
    """Questions of our own under the system prompt."""
    return [Item(f"{SYSTEM}\n\n{q.prompt}", q.candidates) for q in questions(count)]


def apart(a: Decision, b: Decision) -> float:
    """Largest difference of what both have read; the choices have to be the same."""
    assert (a.index, a.operator) == (b.index, b.operator), (a, b)
    return float(np.nanmax(np.abs(a.trajectory - b.trajectory)))


if __name__ == "__main__":
    main()
