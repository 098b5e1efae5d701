"""The table of the scorer's constants, as the paper's appendix has it, from Theta itself."""

from collections.abc import Sequence

from lastword.report.table import Table, columns
from lastword.theta import Theta

_COLUMNS = columns("Symbol | Role | Value | First used")
_DEPTH = 1000  # so deep that no two fractions fall on one depth


def scorer_constants(theta: Theta) -> Table:
    """Every constant of T: its role, its value in this Theta and where it is first used."""
    from lastword.rule.scorer import Scorer

    s = theta.scorer
    quorum = Scorer(theta, depth=_DEPTH, vocabulary=1).quorum
    weights = _listed(s.weights, "()")
    rows = (
        ("A", "relative anchor depths", _listed(s.anchors), "Eq. 10"),
        ("G", "relative feature depths", _listed(s.features), "Eq. 11"),
        ("ℓ(f)", "depth of a fraction", "min(L, ⌈f L⌉)", "Eq. 10"),
        ("|A|, |G|", "depths of each set", f"{len(s.anchors)}, {len(s.features)}", "Eq. 10"),
        ("k", "top-k cutoff at each anchor", f"max({s.k_min}, ⌈{s.k_fraction:g} |V|⌉)", "Eq. 10"),
        ("r_Ω", "recurrence quorum", f"⌈{s.quorum:g} |A|⌉ = {quorum}", "Eq. 10"),
        ("w_ℓ", "weights of the anchors", "∝ exp(ℓ/L), normalised over A", "Eq. 10"),
        ("(β_s, β_j, β_c)", "weights of slope, jump and curvature", weights, "Eq. 11"),
        ("scope", "where evidence is scaled", "Ω where it is not empty, else V", "Eq. 12"),
        ("λ_0", "mixing floor", f"{s.lambda_0:g}", "Eq. 12"),
        ("γ", "slope of the sigmoid", f"{s.gamma_alpha:g}", "Eq. 12"),
        ("t_i", "score of a candidate", "mean log softmax at its own tokens", "Eq. 13"),
        ("outside", "evidence of a token outside Ω", s.outside, "Eq. 12"),
        ("floor", "whose least weight λ_0 is", s.floor, "Eq. 12"),
    )
    notes = (
        "The same for every model and every benchmark. The last two rows are readings that the "
        "paper leaves open (method, section 8).",
    )
    return Table("scorer-constants", "The scorer's constants", _COLUMNS, rows, notes)


def _listed(values: Sequence[float], around: str = "{}") -> str:
    return ", ".join(f"{value:g}" for value in values).join(around)
