"""Evaluation: runs models on benchmarks; tests and probes that several statistics share."""
