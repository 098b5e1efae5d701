"""FACTOR, news: the true continuation of a news text against three false variations.

A prefix ends with the whitespace before the sentence, and candidates follow it directly, as in the
script of the release. The prefix is the question. The blind prompt is the whitespace at its end, so
that candidates begin the same way with and without the question.
"""

from collections.abc import Sequence

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example, require_count
from lastword.lab.benchmarks.source import Row, Source, text_field

ROWS = 1036

# The release's script reads the first of the two names; the spelling is that of the data.
_PREFIXES = {"prefix": "turncated_prefixes", "full_prefix": "full_prefix"}
_CANDIDATES = ("completion", "contradiction_0", "contradiction_1", "contradiction_2")


def _parse(place: int, row: Row) -> tuple[Example, ...]:
    candidates = tuple(text_field(row, name, place) for name in _CANDIDATES)
    if not all(candidates) or not all(text_field(row, p, place) for p in _PREFIXES.values()):
        raise InputError(f"row {place}: {', '.join((*_PREFIXES.values(), *_CANDIDATES))} need text")
    prefixes = {name: row[column].lstrip() for name, column in _PREFIXES.items()}
    blind = {name: text[len(text.rstrip()) :] for name, text in prefixes.items()}
    truthful = (True, False, False, False)
    return (Example(str(place), prefixes, blind, candidates, truthful),)


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    require_count(questions, ROWS)
    return "news"


FACTOR = Benchmark(
    name="factor",
    read=Source(files=("factor/news_factor.csv", "data/news_factor.csv", "news_factor.csv")).read,
    parse=_parse,
    verify=_verify,
    templates={"truncated": "{{ prefix }}", "full": "{{ full_prefix }}"},
    licence="ODC-By",
    citation="Muhlgay et al., Generating Benchmarks for Factuality Evaluation of Language Models, "
    "EACL 2024",
)
