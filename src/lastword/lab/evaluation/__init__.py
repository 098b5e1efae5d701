"""Evaluation: benchmarks to records, and the tests and probes that several statistics need."""
