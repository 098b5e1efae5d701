"""A certified service whose questions change at half time: when does it slip, when does it alarm?

    OMP_NUM_THREADS=1 python experiments/slipping.py [--minutes 60] [--rate 4]

The embedded organism is certified at 3% on 400 questions about facts that training told once or
against errors. For the first half of the time the service is asked only such, from then on one
question in four is about a fact that was first told wrong, where correction breaks. A question is
a draw: a fact, one of the twelve ways to ask for it, and candidates besides the truth and the first
error, each in or out. Few come twice, and what does is one bet. A random tenth of the answers gets
its label at once. It ends by the clock: a machine that is slower than the pace is asked less. The
result is kept in experiments/results/slipping.json; where the service warned or alarmed before the
change, or did not warn after it, the exit code is 1.
"""

import argparse
import json
import random
import time
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from serving import serving

from lastword import Item, Tracer
from lastword.benchmarks.jsonl import jsonl
from lastword.benchmarks.world import Fact, facts
from lastword.evaluation.certification import issue, read_sample
from lastword.evaluation.runner import execute, prepare
from lastword.evaluation.work import Work
from lastword.trust.certify import certify
from lastword.trust.summary import in_words
from lastword.trust.terms import Terms

RESULTS = Path(__file__).parent / "results"
ALPHA, DELTA = 0.03, 0.05
CERTIFIED = 400  # questions
SHARE = 0.25  # of the new questions, from the change on
LABELLED = 0.1
TOLD = ("counts", "labelled", "broken", "alarm", "slipping")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=4.0, help="Requests a second.")
    parser.add_argument("--out", type=Path, default=RESULTS / "slipping.json")
    options = parser.parse_args()
    old, new = told_as("clean", "contested"), told_as("revised")
    with TemporaryDirectory() as folder:
        certificate = Path(folder) / "certificate.toml"
        told = certify_on(old, Path(folder), certificate)
        with serving("lastword/demo-organism", "--certificate", str(certificate)) as (url, _):
            told |= ask(url, old, new, 60 * options.minutes, options.rate)
    told |= {"minutes": options.minutes, "rate": options.rate}
    options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in told.items() if name != "breaks"}))
    change, slipped = told["change"]["labelled"], told["slipping"]
    early = [first for first in (slipped, told["alarm"]) if first and first["labelled"] <= change]
    raise SystemExit(0 if slipped and not early else 1)


def told_as(*kinds: str) -> list[Fact]:
    """Facts of these kinds."""
    return [fact for fact in facts() if fact.kind in kinds]


def question(about: list[Fact], draw: random.Random) -> Item:
    """A question about one of the facts."""
    fact = draw.choice(about)
    asked = draw.choice(fact.relation.seen + fact.relation.unseen).format(s=fact.subject)
    error, *rest = *fact.errors, *fact.others
    candidates = [fact.truth, error, *(c for c in rest if draw.random() < 0.5)]
    draw.shuffle(candidates)
    true = tuple(candidate == fact.truth for candidate in candidates)
    return Item(f"Question: {asked} Answer:", tuple(candidates), truthful=true)


def right(item: Item) -> list[int]:
    """Places of the right candidates."""
    return [place for place, true in enumerate(item.truthful or ()) if true]


def certify_on(about: list[Fact], folder: Path, out: Path) -> dict[str, Any]:
    """Certify from records of questions about these facts; what was let through."""
    draw = random.Random(1)
    asked = [question(about, draw) for _ in range(CERTIFIED)]
    lines = (
        {"prompt": i.prompt, "candidates": i.candidates, "truthful": i.truthful} for i in asked
    )
    path = folder / "asked.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    tracer, dataset = Tracer.demo(), jsonl(path).load()
    job = prepare(tracer, Work(dataset, dataset.benchmark.template(), blind="none"))
    sample = read_sample(execute(tracer, job, folder / "runs").cell)
    finding = certify(sample.items, sample.scalar, Terms(ALPHA, DELTA))
    out.write_text(issue(sample, finding).to_toml(), encoding="utf-8")
    chosen = finding.chosen
    counted = {} if chosen is None else {"fixed": chosen.fixed, "broken": chosen.broken}
    counted |= {"items": finding.items, "groups": finding.groups}
    return {"certified": in_words(finding.policy), "alpha": ALPHA, "delta": DELTA} | counted


def ask(url: str, old: list[Fact], new: list[Fact], seconds: float, rate: float) -> dict[str, Any]:
    """Ask at an even pace, change at half time, label a tenth; what came of it."""
    draw, start = random.Random(0), time.monotonic()
    told: dict[str, Any] = {"change": None, "slipping": None, "alarm": None, "drift": None}
    last: dict[str, Any] = {"labelled": 0, "broken": 0}
    sent, breaks = 0, []
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
        for place in count():
            time.sleep(max(0.0, start + place / rate - time.monotonic()))
            if (now := time.monotonic() - start) >= seconds:
                break
            minute = {"minute": round(now / 60, 2)}
            if told["change"] is None and now >= seconds / 2:
                told["change"] = last | minute
            changed = told["change"] is not None and draw.random() < SHARE
            item = question(new if changed else old, draw)
            body = {"prompt": item.prompt, "candidates": list(item.candidates)}
            answer = http.post("/v1/correct", json=body).raise_for_status().json()
            if draw.random() >= LABELLED:
                continue
            label = {"id": answer["feedback_id"], "right": right(item)}
            said = http.post("/v1/feedback", json=label).raise_for_status().json()
            last, sent = minute | {n: said[n] for n in TOLD}, sent + 1
            drifted = http.get("/v1/model").json()["oversight"]["drifted"]
            for name, warns in (("slipping", said["slipping"]), ("alarm", said["alarm"])):
                told[name] = told[name] or (last if warns else None)
            if drifted and told["drift"] is None:
                told["drift"] = last | {"statistics": drifted}
            if said["was_broken"]:
                breaks.append(last)
        shown = http.get("/v1/model").json()["oversight"]
    return told | {"shown at the end": shown, "requests": place, "labels": sent, "breaks": breaks}


if __name__ == "__main__":
    main()
