"""A portrait as SVG: every candidate's probability over depth, and before and after."""

from dataclasses import dataclass
from html import escape
from pathlib import Path

from lastword.view.palette import LOOKS
from lastword.view.portrait import Candidate, Portrait, short

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _LEGEND = 560, 180, 34, 24, 300
_DASHES = {"solid": "none", "dash": "6 4", "dot": "2 3"}
_INK = "#79828c"  # legible on a light and on a dark ground


@dataclass(frozen=True)
class Sketch:
    """A drawing that a notebook shows; `svg` is its whole text."""

    svg: str

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the drawing as an SVG file."""
        Path(path).write_text(self.svg, encoding="utf-8")


def sketch(portrait: Portrait) -> Sketch:
    """Draw the depths that were read: a line a candidate, a dotted one at depths that decided."""
    marks = [_frame(portrait), *(_depth(portrait, depth) for depth in portrait.deciding_depths)]
    marks += [_curve(portrait, candidate) for candidate in portrait.candidates]
    marks += [_name(candidate, place) for place, candidate in enumerate(portrait.candidates)]
    height = max(_HEIGHT, 18 * len(portrait.candidates)) + _BOTTOM
    return Sketch(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + _LEGEND} {height}" '
        f'width="{_WIDTH + _LEGEND}" role="img" font-family="system-ui, sans-serif" '
        f'font-size="12"><title>probability among the candidates over depth</title>'
        f"{''.join(marks)}</svg>"
    )


def _at(portrait: Portrait, depth: int, share: float) -> tuple[float, float]:
    x = _LEFT + (_WIDTH - _LEFT - 12) * depth / max(portrait.depth, 1)
    return round(x, 1), round(8 + (_HEIGHT - 16) * (1 - share), 1)


def _frame(portrait: Portrait) -> str:
    (left, low), (right, high) = _at(portrait, 0, 0.0), _at(portrait, portrait.depth, 1.0)
    texts = ((left - 6, low + 4, "end", "0"), (left - 6, high + 4, "end", "1"))
    depths = ((left, low + 18, "start", "depth 0"), (right, low + 18, "end", f"{portrait.depth}"))
    return f'<path d="M{left},{high}V{low}H{right}" fill="none" stroke="{_INK}"/>' + "".join(
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{_INK}">{text}</text>'
        for x, y, anchor, text in (*texts, *depths)
    )


def _depth(portrait: Portrait, depth: int) -> str:
    (x, low), (_, high) = _at(portrait, depth, 0.0), _at(portrait, depth, 1.0)
    name = f"<title>{escape(portrait.deciding_name)}</title>"
    return f'<path d="M{x},{high}V{low}" stroke="{_INK}" stroke-dasharray="2 3">{name}</path>'


def _curve(portrait: Portrait, candidate: Candidate) -> str:
    places = zip(portrait.depths, candidate.shares, strict=True)
    points = " ".join("{},{}".format(*_at(portrait, depth, share)) for depth, share in places)
    look = LOOKS[candidate.role]
    return (
        f'<polyline points="{points}" fill="none" stroke="{look.light}" '
        f'stroke-width="{look.width}" stroke-dasharray="{_DASHES[look.dash]}"/>'
    )


def _name(candidate: Candidate, place: int) -> str:
    text = escape(f"{candidate.letter}  {short(candidate.text, 26)}")
    shares = f"{candidate.before:.3f} → {candidate.after:.3f}"
    y, color = 18 + 18 * place, LOOKS[candidate.role].light
    return (
        f'<text x="{_WIDTH}" y="{y}" fill="{color}">{text}</text>'
        f'<text x="{_WIDTH + _LEGEND}" y="{y}" text-anchor="end" fill="{color}">{shares}</text>'
    )
