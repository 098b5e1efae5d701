"""Shorten: text that has no room for all of itself."""


def shorten(text: str, limit: int = 40) -> str:
    """Text of at most `limit` characters; what was cut is an ellipsis."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"
