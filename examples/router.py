"""Sends the tickets that have no team yet to one, by a served model; what it defers, to a person.

    lastword serve --model lastword/smollm2-135m &
    python examples/router.py examples/tickets.csv http://127.0.0.1:8000

The questions are those of `lastword decide --questions examples/questions.yaml`. Without a
certificate the model answers every ticket by itself. `lastword try` makes one from labelled tickets
(docs/try.md); with `lastword serve --certificate` the model says what it is too unsure of.
"""

import csv
import json
import sys
from urllib.request import Request, urlopen

TEAMS = {
    "billing": "payments and prices",
    "shipping": "parcels",
    "returns": "sending things back",
    "account": "logging in",
    "technical": "how it works",
}
CHOICES = [{"value": team, "description": tickets} for team, tickets in TEAMS.items()]
QUESTION = {"type": "choice", "instructions": "Which team?", "choices": CHOICES}


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
    print(ticket["id"], who, f"{team['confidence']:.2f}")
