"""Certificates of a table of answers, for the answerer that wrote the table."""

from collections.abc import Mapping
from dataclasses import replace

from lastword.decide.answer import Answer
from lastword.errors import CertificateError, NonFiniteError
from lastword.text.question import Question, question_digest
from lastword.trust.certificate import Certificate
from lastword.trust.subject import Predictions


class TableCertificate:
    """Defers answers below the threshold of a table's certificate."""

    def __init__(self, certificate: Certificate, subject: Predictions) -> None:
        self.least, self.answerer = certificate.threshold, subject.answerer
        self._questions = set[str]()
        column = subject.columns.get("confidence", "")
        self._number = column.rpartition(".")[2]
        if not self.answerer:
            raise CertificateError(
                f"the certificate is for the predictions of a table, {subject.name}, which does "
                "not name its answerer: let `lastword decide` answer one question about its texts, "
                "and certify that table"
            )
        if certificate.automation is not None and self.least is None:
            raise CertificateError(
                "the certificate proves no threshold for its error: label more, or allow more "
                "errors (--error), and certify again"
            )
        if self.least is not None and self._number not in ("probability", "confidence"):
            raise CertificateError(
                f"the certificate's threshold is for the column {column!r}: certify with "
                "--confidence-column NAME.probability"
            )

    def admit(self, answerers: Mapping[str, Question]) -> None:
        """Note which question it is for, among questions by the digests of their answerers."""
        if (question := answerers.get(self.answerer)) is None:
            raise CertificateError(
                "the certificate is for another question than these, or for another model, probe, "
                "correction or prompt template: certify a table that this one answered"
            )
        self._questions.add(question_digest(question))

    def defer(self, answer: Answer | NonFiniteError) -> Answer | NonFiniteError:
        """Return an answer, deferred if it is to the certified question and below the threshold."""
        if isinstance(answer, NonFiniteError) or self.least is None:
            return answer
        if question_digest(answer.question) not in self._questions:
            return answer
        unsure = answer.deferred or getattr(answer, self._number) < self.least
        return replace(answer, deferred=unsure)
