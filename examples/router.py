"""Sends each ticket without a team to one, by a served model; what it defers goes to a person.

    lastword serve --model lastword/smollm2-135m &
    python examples/router.py examples/tickets.csv http://127.0.0.1:8000

The question is `team` of examples/questions.yaml, and the one that `lastword try` asks of these
tickets (docs/try.md): served with what `try` leaves, a probe answers it under a certificate, and
`--novelty 0.01` defers tickets that are like none of the labelled ones.
"""

import csv
import json
import sys
from urllib.request import Request, urlopen

TEAMS = ["account", "billing", "returns", "shipping", "technical"]
QUESTION = {"type": "choice", "instructions": "Which team?", "choices": TEAMS}


def post(url: str, body: object) -> dict:  # noqa: D103
    headers = {"content-type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


path, url = sys.argv[1:]
with urlopen(f"{url}/v1/models") as answer:
    model = json.load(answer)["data"][0]["id"]
with open(path, newline="", encoding="utf-8") as file:
    tickets = [ticket for ticket in csv.DictReader(file) if not ticket["team"]]
for ticket in tickets:
    asked = {"model": model, "input": ticket["text"], "questions": [QUESTION]}
    (team,) = post(f"{url}/v1/decisions", asked)["answers"]
    who = "a person" if team["lastword"]["deferred"] else team["choice"]
    print(ticket["id"], who, f"{max(p['probability'] for p in team['probabilities']):.0%}")
