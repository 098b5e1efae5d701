"""Measure how fast a model answers with and without correction, beside others and the floor."""
