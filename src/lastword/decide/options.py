"""The options of a decider: those of its model, and what decides."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lastword.model.options import LoadOptions, strict_keywords
from lastword.trust.certificate import Certificate


@strict_keywords
@dataclass(frozen=True, kw_only=True)
class DecideOptions(LoadOptions):
    """Options of loading a model, and of what decides with it.

    Raises:
        InputError: As `LoadOptions`.
        CertificateError: The file cannot be read, or holds no certificate.
    """

    certificate: Annotated[
        Certificate | str | Path | None,
        "Of `lastword certify`, or its file: which overrides are allowed.",
    ] = None
    correction: Annotated[
        str | None,
        "What decides: trace, or a method that `lastword compare --list` names, as pmi@0.5. Left "
        "out, trace corrects, and questions (`decide`, the service's decisions) get the model's "
        "own answers. A certificate says what it is for, and is refused beside another.",
    ] = None
    probes: Annotated[
        Sequence[Any], "Files of probes (`lastword try` writes one); each answers its question."
    ] = ()
    unlike: Annotated[
        float,
        "Defer a probe's answer to a text whose p-value of being like the labelled ones is below "
        "this.",
    ] = 0.0

    def __post_init__(self) -> None:
        """Read the certificate's file."""
        super().__post_init__()
        if isinstance(self.certificate, str | Path):
            object.__setattr__(self, "certificate", Certificate.read(self.certificate))

    def facts(self) -> dict[str, Any]:
        """Return the options that a record depends on, as plain JSON values."""
        facts = super().facts()
        if self.correction is not None:
            facts["correction"] = self.correction
        if isinstance(self.certificate, Certificate):
            facts["certificate"] = self.certificate.describe()
        return facts
