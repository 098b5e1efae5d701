"""Engines: run evaluations and decisions on many machines, with Ray."""
