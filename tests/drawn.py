"""What a drawn panel shows, for tests: its curves, bars, rules and texts."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.container import BarContainer


def curves(axes: Axes) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return name, x and y of each curve."""
    lines = [(str(line.get_label()), line) for line in axes.lines]
    return [
        (label[1:], np.asarray(line.get_xdata()), np.asarray(line.get_ydata()))
        for label, line in lines
        if not label.startswith("_child")
    ]


def rules(axes: Axes) -> list[float]:
    """Return the places of the vertical rules."""
    lines = [line for line in axes.lines if str(line.get_label()).startswith("_child")]
    places = [np.asarray(line.get_xdata()) for line in lines]
    return [float(x[0]) for x in places if len({*x}) == 1]


def bars(axes: Axes) -> dict[str, np.ndarray]:
    """Return the lengths of the bars, by group."""
    groups = [group for group in axes.containers if isinstance(group, BarContainer)]
    return {str(group.get_label()): np.asarray(group.datavalues) for group in groups}


def texts(axes: Axes) -> list[str]:
    """Return the texts that are written into the panel."""
    return [text.get_text() for text in axes.texts]


def title(axes: Axes) -> str:
    """Return the panel's title."""
    return axes.get_title(loc="left")
