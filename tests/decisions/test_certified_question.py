"""A certificate speaks of its questions: another one is answered without it."""

import populations
import pytest

from lastword import Tracer
from lastword.decisions import Choice
from lastword.decisions.question import question_digest
from lastword.trust.policy import OFF
from lastword.trust.terms import Terms

OWN = Choice("Which goods?", ["clay lamps", "pale cedar boats"])
TURNED = Choice("Which goods?", ["pale cedar boats", "clay lamps"])
OTHER = Choice("Who is angry?", ["clay lamps", "pale cedar boats"])


@pytest.mark.parametrize(("question", "deferred"), [(OWN, True), (TURNED, True), (OTHER, False)])
def test_another_question_is_answered_without_the_certificate(question, deferred):
    plain = Tracer.demo()
    asked = {"q": question}
    certificate = populations.certificate(
        plain.subject,
        OFF,
        Terms(error=0.1),
        0,
        items=300,
        answered=300,
        wrong=0.03,
        threshold=0.9999,
        templates=(plain.prepare(asked).template_name,),
        questions=(question_digest(OWN),),
    )
    answer = Tracer.demo(certificate=certificate).decide("A letter about lamps.", asked)["q"]
    assert answer.deferred is deferred
