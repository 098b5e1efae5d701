"""Evaluation: benchmarks to records, and records to metrics, statistics and ablations."""
