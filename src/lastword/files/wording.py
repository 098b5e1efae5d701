"""Shortened texts, numbers with nouns, and percentages."""


def shorten(text: str, limit: int = 40) -> str:
    """Return text of at most `limit` characters, cut after a word if one ends near the limit."""
    if len(text) <= limit:
        return text
    whole = text[:limit].rpartition(" ")[0]
    return (whole if len(whole) > 0.7 * limit else text[: limit - 1]).rstrip() + "…"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 row`, `2 rows`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def percent(share: float) -> str:
    """Return `61.3%`; a dash if there is no number."""
    return "–" if share != share else f"{100 * share:.1f}%".replace(".0%", "%")


def two_digits(share: float, sign: str = "") -> str:
    """Return a share in percent with two digits: `4.8`, `150`; the sign `+` shows it always."""
    return f"{float(f'{100 * share:.2g}'):{sign}g}"
