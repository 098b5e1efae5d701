"""Shorten: text that has no room for all of itself."""


def shorten(text: str, limit: int = 40) -> str:
    """Text of at most `limit` characters, cut after a word where one ends late enough."""
    if len(text) <= limit:
        return text
    whole = text[:limit].rpartition(" ")[0]
    return (whole if len(whole) > 0.7 * limit else text[: limit - 1]).rstrip() + "…"
