"""Chart: line charts as SVG, in the colours of the page that shows them.

matplotlib is not used, because it would be a third of the installation that `certify` needs for
plain tables.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from lastword.records.marks import Role

_ROLES: tuple[Role, ...] = ("corrected", "base", "mix", "truthful", "early", "winner")
_KEYS, _KEY_HEIGHT = 2, 15  # names per line
_FEW = 20  # points from which a line has no marks
_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 448, 48, 254
_MARGIN = 0.05  # share of an axis that stays free at each end
_SVG = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}" '
    'font-family="sans-serif" font-size="12" fill="currentColor">{}</svg>'
)
_TEXT = Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>')
_UPRIGHT = Markup(
    '<text transform="translate(14 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>'
)
_GRID = Markup('<path d="M{} {:.1f}H{}" stroke="currentColor" stroke-opacity="0.25"/>')
_AXES = Markup('<path d="M{} {}V{}H{}" fill="none" stroke="currentColor"/>')
_LINE = Markup('<polyline points="{}" style="fill:none;stroke:var(--{});stroke-width:1.5"/>')
_POINT = Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}" style="fill:var(--{})"/>')
_KEY = Markup('<text x="{}" y="{}" style="fill:var(--{})">● {}</text>')


def line_chart(
    title: str,
    along: str,
    lines: Mapping[str, tuple[Sequence[int | float], Sequence[int | float]]],
    up: str,
    marked: Sequence[tuple[float, float]] = (),
) -> Markup:
    """Return a line chart of shares in [0, 1], in percent, as SVG; it shows the first six lines.

    `marked` are points to mark, in the colour of the first line.
    """
    points = {n: [(x, 100 * y) for x, y in zip(*line, strict=True)] for n, line in lines.items()}
    across, high = zip(*(point for line in points.values() for point in line), strict=True)
    top = _TOP + _KEY_HEIGHT * ((min(len(lines), len(_ROLES)) - 1) // _KEYS)
    (x, along_ticks), (y, up_ticks) = _axis(across, _LEFT, _RIGHT), _axis(high, _BOTTOM, top)
    marks = [
        _TEXT.format(_WIDTH / 2, 16, "middle", title),
        _TEXT.format((_LEFT + _RIGHT) / 2, _HEIGHT - 6, "middle", along),
        _UPRIGHT.format((top + _BOTTOM) / 2, up),
        _AXES.format(_LEFT, top, _BOTTOM, _RIGHT),
        *(_TEXT.format(x(tick), _BOTTOM + 18, "middle", f"{tick:g}") for tick in along_ticks),
        *(_GRID.format(_LEFT, y(tick), _RIGHT) for tick in up_ticks),
        *(_TEXT.format(_LEFT - 6, y(tick) + 4, "end", f"{tick:g}") for tick in up_ticks),
    ]
    for n, (role, (name, line)) in enumerate(zip(_ROLES, points.items(), strict=False)):
        places = [(x(a), y(b)) for a, b in line]
        marks += [_LINE.format(" ".join(f"{a:.1f},{b:.1f}" for a, b in places), role)]
        marks += [_POINT.format(*place, 2, role) for place in places if len(places) < _FEW]
        if len(lines) > 1:
            column = _LEFT + n % _KEYS * (_RIGHT - _LEFT) // min(len(lines), _KEYS)
            marks += [_KEY.format(column, 36 + n // _KEYS * _KEY_HEIGHT, role, name)]
    marks += [_POINT.format(x(a), y(100 * b), 5, _ROLES[0]) for a, b in marked]
    return _SVG.format(_WIDTH, _HEIGHT, title, Markup("").join(marks))


def _axis(
    values: Sequence[float], start: int, end: int
) -> tuple[Callable[[float], float], list[float]]:
    """Return the map from numbers to coordinates, and at most six round numbers on the axis."""
    # An axis of equal values would have no length.
    room = _MARGIN * (max(values) - min(values)) or 1.0
    low, high = min(values) - room, max(values) + room
    least = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit >= least)
    ticks = [n * step for n in range(math.ceil(low / step), int(high // step) + 1)]
    return lambda value: start + (value - low) / (high - low) * (end - start), ticks
