"""Typed questions about texts, plans of the work to answer them, and answers."""
