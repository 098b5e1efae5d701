"""What a drawn panel shows, for tests: its curves, bars, rules and texts."""

import numpy as np
from matplotlib.axes import Axes


def curves(axes: Axes) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return name, x and y of each curve."""
    lines = [line for line in axes.lines if not line.get_label().startswith("_child")]
    return [(line.get_label()[1:], line.get_xdata(), line.get_ydata()) for line in lines]


def rules(axes: Axes) -> list[float]:
    """Return the places of the vertical rules."""
    lines = [line for line in axes.lines if line.get_label().startswith("_child")]
    return [float(x[0]) for line in lines if len({*(x := line.get_xdata())}) == 1]


def bars(axes: Axes) -> dict[str, np.ndarray]:
    """Return the lengths of the bars, by group."""
    return {group.get_label(): group.datavalues for group in axes.containers}


def texts(axes: Axes) -> list[str]:
    """Return the texts that are written into the panel."""
    return [text.get_text() for text in axes.texts]


def title(axes: Axes) -> str:
    """Return the panel's title."""
    return axes.get_title(loc="left")
