"""Typed questions about a text, the plan of their work, and their answers."""
