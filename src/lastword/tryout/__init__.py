"""Runs `try`: tests ways to improve a model's answers on a table of labelled examples."""
