"""Prompts, items, token ids, and the packed forest of their common prefixes."""
