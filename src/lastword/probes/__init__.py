"""Probes: classifiers on the model's hidden states, fitted to labels (docs/statistics.md).

fit_state        a linear map from one state to fixed options
fit_stacked      three weights over its scores and the model's scores
fit_trajectory   weights over the scores at every depth, for options that differ by item
Probe            a fit with its question, template and model, and its file
bag_of_words     the control that needs no model
"""

from lastword.probes.probe import Probe
from lastword.probes.state import LinearProbe, fit_stacked, fit_state
from lastword.probes.trajectory import TrajectoryProbe, fit_trajectory
from lastword.probes.words import bag_of_words

__all__ = [
    "LinearProbe",
    "Probe",
    "TrajectoryProbe",
    "bag_of_words",
    "fit_stacked",
    "fit_state",
    "fit_trajectory",
]
