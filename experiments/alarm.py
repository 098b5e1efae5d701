"""The alarm of a service whose answers become worse: 300 answers, each labelled afterwards.

    OMP_NUM_THREADS=1 python experiments/alarm.py DATA/agnews.jsonl

DATA is as in automation.py. A probe on mpnet is fitted to 120 labelled texts, 60 others plan the
confidence from which at most 20% of its answers are wrong, and 120 prove it (method, section 23). A
service answers 300 further texts, and gets the label of each answer. From the 151st on, another
text stands before each text. The output is kept in dev/LOG.md (*The alarm of a service*).
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from probes import rows_of

from lastword import Decider, ProbeClassifier
from lastword.model.encoder import Encoder
from lastword.trust.automation import Automation, curve, plan, rungs, until_failure

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from served import Running, running
from topics import certificate_of

FITTED, PLANNING, PROVING, SERVED, ERROR, DELTA = 120, 60, 120, 300, 0.2, 0.05


def confidences(decider: Decider, rows: Sequence[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the confidence of each answer, and whether it is wrong."""
    question = {"q": decider.probes[0].question}
    answers = [one["q"] for one in decider.decide_many([row["input"] for row in rows], question)]
    wrong = [one.choice != row["truth"] for one, row in zip(answers, rows, strict=True)]
    return np.array([one.probability for one in answers]), np.array(wrong)


def certified(encoder: Encoder, rows: Sequence[dict[str, Any]]) -> Decider:
    """Return a decider with a probe and the certificate of its errors."""
    fitted, rest = rows[:FITTED], rows[FITTED:]
    planning, proving = rest[:PLANNING], rest[PLANNING : PLANNING + PROVING]
    classifier = ProbeClassifier(encoder, rows[0]["instructions"])
    texts, labels = ([row[name] for row in fitted] for name in ("input", "truth"))
    probe = classifier.fit(texts, labels).probe_
    bare = Decider(probes=[probe], encoders=[encoder])
    steps = curve(*confidences(bare, planning), np.arange(PLANNING))
    confidence, wrong = confidences(bare, proving)
    ladder = plan(steps, confidence, rows=PROVING, error=ERROR, level=DELTA, drawn=False)
    steps = rungs(confidence, wrong, np.arange(PROVING), ladder.thresholds)
    tested = until_failure(steps, ERROR, DELTA)
    automation = Automation(ERROR, tested, 1)
    rung = automation.rung(DELTA)
    assert rung is not None, "nothing is proven"
    certificate = certificate_of(probe, rung.threshold)
    terms = replace(certificate.terms, error=ERROR)
    certificate = replace(certificate, terms=terms, automation=automation)
    return Decider(probes=[probe], encoders=[encoder], certificate=certificate)


def serve(served: Running, texts: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """Ask about each text, send the truth, and print what the service says."""
    asked = served.service.decider.probes[0].question
    options = [option.text for option in asked.options]
    question = {"type": "choice", "instructions": asked.instructions, "choices": options}
    alarm = 0
    for place, (text, row) in enumerate(zip(texts, rows, strict=True), 1):
        body = {"model": served.service.name, "input": text, "questions": [question]}
        (answer,) = served.client.post("/v1/decisions", json=body).json()["answers"]
        right = options.index(row["truth"])
        label = {"id": answer["lastword"]["feedback_id"], "right": right}
        result = served.client.post("/v1/feedback", json=label).json()
        alarm = alarm or (place if result["alarm"] else 0)
        if place % 25 == 0 or alarm == place:
            wealth = served.metric("lastword_monitor_log_wealth", of="errors")
            share = served.metric("lastword_answered_share")
            print(
                f"{place:4} answers: {result['given']:3} given, {result['wrong']:2} wrong, log "
                f"wealth {wealth:6.2f}, {share:.0%} answered{', alarm' * (alarm == place)}"
            )
    print(f"alarm after {alarm} answers; at log(1/delta) = {np.log(1 / DELTA):.2f}")


def main() -> None:
    """Fit, prove, and serve."""
    rows = rows_of(Path(sys.argv[1]))
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    decider = certified(Encoder("mpnet", "cpu"), rows)
    later = rows[FITTED + PLANNING + PROVING :][:SERVED]
    texts = [
        row["input"] if i < SERVED // 2 else f"{rows[i % FITTED]['input']} {row['input']}"
        for i, row in enumerate(later)
    ]
    with running(decider) as served:
        serve(served, texts, later)


if __name__ == "__main__":
    main()
