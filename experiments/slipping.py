"""A certified service whose questions change at half time: when does it slip, when does it alarm?

    OMP_NUM_THREADS=1 python experiments/slipping.py [--minutes 60] [--rate 4]

The embedded organism is certified at 3% on facts that training told once or against errors. For the
first half of the time the service is asked only those, from then on three questions in four are
about facts that were first told wrong, where correction breaks. A random tenth of the answers gets
its label at once. The result is kept in experiments/results/slipping.json; where the service warned
or alarmed before the change, or did not warn after it, the exit code is 1.
"""

import argparse
import json
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from serving import serving

from lastword import Item, Tracer
from lastword.benchmarks.jsonl import jsonl
from lastword.benchmarks.world import items, parse_label
from lastword.evaluation.certification import issue, read_sample
from lastword.evaluation.runner import execute, prepare
from lastword.evaluation.work import Work
from lastword.trust.certify import certify
from lastword.trust.summary import in_words
from lastword.trust.terms import Terms

RESULTS = Path(__file__).parent / "results"
ALPHA, DELTA = 0.03, 0.05
SHARE = 0.75  # of the new questions, from the change on
LABELLED = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=4.0, help="Requests a second.")
    parser.add_argument("--out", type=Path, default=RESULTS / "slipping.json")
    options = parser.parse_args()
    old, new = kinds("clean", "contested"), kinds("revised")
    with TemporaryDirectory() as folder:
        certificate = Path(folder) / "certificate.toml"
        told = certify_on(old, Path(folder), certificate)
        with serving("lastword/demo-organism", "--certificate", str(certificate)) as (url, _):
            told |= ask(url, old, new, 60 * options.minutes, options.rate)
    told |= {"minutes": options.minutes, "rate": options.rate}
    options.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in told.items() if name != "labels"}))
    change, slipped = told["change"]["labelled"], told["slipping"]
    early = [first for first in (slipped, told["alarm"]) if first and first["labelled"] <= change]
    raise SystemExit(0 if slipped and not early else 1)


def kinds(*names: str) -> list[Item]:
    """Questions about facts of these kinds."""
    return [item for item in items() if parse_label(item.id).kind in names]


def right(item: Item) -> list[int]:
    """Places of the right candidates."""
    return [place for place, true in enumerate(item.truthful or ()) if true]


def certify_on(asked: list[Item], folder: Path, out: Path) -> dict[str, Any]:
    """Certify from records of these questions; what was let through."""
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
    return {"certified": in_words(finding.policy), "alpha": ALPHA, "delta": DELTA}


def ask(url: str, old: list[Item], new: list[Item], seconds: float, rate: float) -> dict[str, Any]:
    """Ask at an even pace, change at half time, label a tenth; what came of it."""
    draw, start = random.Random(0), time.monotonic()
    told: dict[str, Any] = {"change": None, "slipping": None, "alarm": None, "drift": None}
    labels: list[dict[str, Any]] = []
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
        for place in range(int(seconds * rate)):
            time.sleep(max(0.0, start + place / rate - time.monotonic()))
            now = time.monotonic() - start
            at = {"minute": round(now / 60, 2), "labelled": len(labels)}
            if told["change"] is None and now >= seconds / 2:
                told["change"] = at | {"broken": labels[-1]["broken"] if labels else 0}
            changed = told["change"] is not None and draw.random() < SHARE
            item = draw.choice(new if changed else old)
            body = {"prompt": item.prompt, "candidates": list(item.candidates)}
            answer = http.post("/v1/correct", json=body).raise_for_status().json()
            if draw.random() >= LABELLED:
                continue
            label = {"id": answer["feedback_id"], "right": right(item)}
            said = http.post("/v1/feedback", json=label).raise_for_status().json()
            labels.append(at | {n: said[n] for n in ("labelled", "broken", "alarm", "slipping")})
            for name in ("slipping", "alarm"):
                if said[name] and told[name] is None:
                    told[name] = labels[-1]
            drifted = http.get("/v1/model").json()["oversight"]["drifted"]
            if drifted and told["drift"] is None:
                told["drift"] = labels[-1] | {"statistics": drifted}
        shown = http.get("/v1/model").json()["oversight"]
    return told | {"shown at the end": shown, "requests": place + 1, "labels": labels}


if __name__ == "__main__":
    main()
