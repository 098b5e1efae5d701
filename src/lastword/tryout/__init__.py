"""Runs `try`: tests on a table of labelled examples what improves a model's answers."""
