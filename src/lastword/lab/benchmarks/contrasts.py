"""HaluEval, FIB and FACTOR: the right candidate is the first of the record, against wrong ones.

No metric depends on that order. All texts are stripped. FIB (Tam et al.) has the form of HaluEval's
summaries, but is a separate data set and is never labelled as HaluEval. In FACTOR, a prefix ends
with the whitespace before the sentence, and candidates follow it directly, as in the script of the
release. The prefix is the question; its blind prompt is the whitespace at its end, so that
candidates begin the same way with and without it.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example, exactly
from lastword.lab.benchmarks.source import Row, Source, text_field

ITEMS = 500  # first rows of HaluEval


def _example(
    place: int, row: Row, names: tuple[str, ...], texts: Mapping[str, str], blind: Mapping[str, str]
) -> tuple[Example, ...]:
    """Return the example whose candidates are the row's fields of these names."""
    candidates = tuple(text_field(row, name, place) for name in names)
    if not all(candidates):
        raise InputError(f"row {place}: {' and '.join(names)} need text")
    truthful = (True, *[False] * (len(names) - 1))
    return (Example(str(place), texts, blind, candidates, truthful),)


def _parse(place: int, row: Row, kind: str, *fields: str) -> tuple[Example, ...]:
    """Parse a row of HaluEval with a kind of candidates; its first field is the question."""
    texts = {name: text_field(row, name, place) for name in fields}
    names = (f"right_{kind}", f"hallucinated_{kind}")
    return _example(place, row, names, texts, texts | {fields[0]: ""})


def _parse_qa(place: int, row: Row) -> tuple[Example, ...]:
    return _parse(place, row, "answer", "question", "knowledge")


def _parse_sum(place: int, row: Row) -> tuple[Example, ...]:
    return _parse(place, row, "summary", "document")


def _parse_factor(place: int, row: Row) -> tuple[Example, ...]:
    # The release's script reads the first of the two columns; the spelling is that of the data.
    columns = {"prefix": "turncated_prefixes", "full_prefix": "full_prefix"}
    if not all(text_field(row, column, place) for column in columns.values()):
        raise InputError(f"row {place}: {' and '.join(columns.values())} need text")
    prefixes = {name: row[column].lstrip() for name, column in columns.items()}
    blind = {name: text[len(text.rstrip()) :] for name, text in prefixes.items()}
    names = ("completion", "contradiction_0", "contradiction_1", "contradiction_2")
    return _example(place, row, names, prefixes, blind)


_SUMMARIES = "summarization_data.json"
_halueval = partial(
    Benchmark,
    verify=exactly(ITEMS, f"first {ITEMS}"),
    licence="MIT",
    citation="Li et al., HaluEval: A Large-Scale Hallucination Evaluation Benchmark for Large "
    "Language Models, EMNLP 2023",
)

HALUEVAL_QA = _halueval(
    name="halueval-qa",
    read=Source(
        files=("halueval/qa_data.json", "HaluEval/qa_data.json", "qa_data.json"),
        hub="pminervini/HaluEval:qa",
        take=ITEMS,
    ).read,
    parse=_parse_qa,
    templates={"knowledge": "Knowledge: {{ knowledge }}\nQuestion: {{ question }}\nAnswer:"},
)

HALUEVAL_QA_CLOSED = replace(
    HALUEVAL_QA,
    name="halueval-qa-closed",
    templates={"closed": "Question: {{ question }}\nAnswer:"},
)

HALUEVAL_SUM = _halueval(
    name="halueval-sum",
    read=Source(
        files=(f"halueval/{_SUMMARIES}", f"HaluEval/{_SUMMARIES}", _SUMMARIES),
        hub="pminervini/HaluEval:summarization",
        take=ITEMS,
    ).read,
    parse=_parse_sum,
    templates={"document": "Document: {{ document }}\nSummary:"},
)

FIB = Benchmark(
    name="fib",
    # Both sets use the same file name: in a folder named fib it is FIB's, elsewhere HaluEval's.
    read=Source((f"fib/{_SUMMARIES}", "fib.json", "fib.jsonl", f"../fib/{_SUMMARIES}")).read,
    parse=_parse_sum,
    templates=HALUEVAL_SUM.templates,
    licence="CC BY 4.0",
    citation="Tam et al., Evaluating the Factual Consistency of Large Language Models Through "
    "News Summarization, Findings of ACL 2023",
)

FACTOR = Benchmark(
    name="factor",
    read=Source(("factor/news_factor.csv", "data/news_factor.csv", "news_factor.csv")).read,
    parse=_parse_factor,
    verify=exactly(1036, "news"),
    templates={"truncated": "{{ prefix }}", "full": "{{ full_prefix }}"},
    licence="ODC-By",
    citation="Muhlgay et al., Generating Benchmarks for Factuality Evaluation of Language Models, "
    "EACL 2024",
)
