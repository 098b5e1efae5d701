"""Options of a decider: those of its model, with correction, certificate and probes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastword.model.options import LoadOptions

if TYPE_CHECKING:
    from lastword.model.encoder import Encoder
    from lastword.probes.probe import Probe
    from lastword.trust.certificate import Certificate


@dataclass(frozen=True, kw_only=True)
class DecideOptions(LoadOptions):
    """Options of loading a model with its correction, certificate and probes.

    Attributes: those of `LoadOptions`, and the arguments of `Decider`.

    Raises:
        InputError: As in `LoadOptions`.
        CertificateError: The file cannot be read, or is not a certificate.
    """

    certificate: "Certificate | str | Path | None" = None
    correction: str | None = None
    probes: "Sequence[Probe | str | Path]" = ()
    encoders: "Sequence[Encoder | str | Path]" = ()
    novelty: float = 0.0
    template: str | None = None

    def __post_init__(self) -> None:
        """Read the certificate's file, and accept any sequence of probes."""
        super().__post_init__()
        object.__setattr__(self, "probes", tuple(self.probes))
        object.__setattr__(self, "encoders", tuple(self.encoders))
        if isinstance(self.certificate, str | Path):
            from lastword.trust.certificate import Certificate  # imports numpy and scipy

            object.__setattr__(self, "certificate", Certificate.read(self.certificate))

    def facts(self) -> dict[str, Any]:
        """Return the options that a record depends on, as plain JSON values."""
        facts = super().facts()
        if self.correction is not None:
            facts["correction"] = self.correction
        if self.certificate is not None:
            assert not isinstance(self.certificate, str | Path), "the options have read the file"
            facts["certificate"] = self.certificate.describe()
        return facts
