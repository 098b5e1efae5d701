"""Evaluation: runs models on benchmarks; the tests that several statistics share."""
