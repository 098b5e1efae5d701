"""Routes tickets to teams by a served model; what it is unsure of goes to a person.

    lastword serve --model lastword/demo-organism &
    python examples/router.py examples/tickets.csv http://127.0.0.1:8000

The questions are those of `lastword decide --questions examples/questions.yaml`. A model that was
certified on labelled tickets (docs/trust.md) is served with --certificate: it says what it defers.
"""

import csv
import json
import sys
from urllib.request import Request, urlopen

TEAMS = [
    {"value": "billing"},
    {"value": "shipping", "description": "where parcels are"},
    {"value": "repairs"},
]
QUESTION = {"type": "choice", "instructions": "Which team?", "choices": TEAMS}
SURE = 0.2  # of confidence; a certificate's threshold has a promise, this number has none


def post(url: str, body: object) -> dict:  # noqa: D103
    headers = {"content-type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


tickets, url = sys.argv[1:]
with urlopen(f"{url}/v1/models") as answer:
    model = json.load(answer)["data"][0]["id"]
with open(tickets, newline="", encoding="utf-8") as file:
    for ticket in csv.DictReader(file):
        asked = {"model": model, "input": ticket["text"], "questions": [QUESTION]}
        (team,) = post(f"{url}/v1/decisions", asked)["answers"]
        sure = team["confidence"] >= SURE and not team["lastword"]["deferred"]
        print(ticket["id"], team["choice"] if sure else "a person", f"{team['confidence']:.2f}")
