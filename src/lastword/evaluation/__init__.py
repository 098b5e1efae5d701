"""Evaluation: benchmarks to records, and records to statistics, comparisons and ablations."""
