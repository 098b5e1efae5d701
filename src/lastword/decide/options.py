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

    Attributes:
        certificate: A certificate or its file; it limits the overrides that are applied.
        correction: Correction to apply: trace, or a method listed by `lastword compare --list`,
            such as pmi@0.5. By default items are corrected by trace, and questions get the
            model's answers. A certificate names its method, and is refused with any other.
        probes: Probes or their files. Each answers the question that it was fitted to.
        encoders: Sentence encoders that probes read: an `Encoder`, a hub name or a folder. `minilm`
            and `mpnet` need not be listed.
        unlike: Defer a probe's answer if the p-value of the text being like the labelled texts
            is below this.
        template: Prompt template of questions; by default the certificate and `chat` choose it.

    Raises:
        InputError: As in `LoadOptions`, or a probe cannot be read.
        CertificateError: The file cannot be read, or is not a certificate.
    """

    certificate: "Certificate | str | Path | None" = None
    correction: str | None = None
    probes: "Sequence[Probe | str | Path]" = ()
    encoders: "Sequence[Encoder | str | Path]" = ()
    unlike: float = 0.0
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
