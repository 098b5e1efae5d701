"""Measures the speed of a model with and without correction, compared with other programs."""
