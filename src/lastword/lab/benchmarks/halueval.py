"""HaluEval (question answering and summaries), and FIB in the same form: right against wrong.

Each uses the first 500 rows, with two candidates. The right one is first in the record; no metric
depends on that order. All texts are stripped. FIB (Tam et al.) is a separate data set and is never
labelled as HaluEval.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example, require_count
from lastword.lab.benchmarks.source import Row, Source, text_field

ITEMS = 500

_HALUEVAL_LICENCE = "MIT"
_HALUEVAL_CITATION = (
    "Li et al., HaluEval: A Large-Scale Hallucination Evaluation Benchmark for Large Language "
    "Models, EMNLP 2023"
)


def _example(
    place: int, row: Row, fields: tuple[str, ...], blind: str, candidates: tuple[str, str]
) -> tuple[Example, ...]:
    texts = {name: text_field(row, name, place) for name in fields}
    right, wrong = (text_field(row, name, place) for name in candidates)
    if not right or not wrong:
        raise InputError(f"row {place}: {' and '.join(candidates)} need text")
    return (
        Example(
            id=str(place),
            fields=texts,
            blind_fields=texts | {blind: ""},
            candidates=(right, wrong),
            truthful=(True, False),
        ),
    )


_parse_qa = partial(
    _example,
    fields=("question", "knowledge"),
    blind="question",
    candidates=("right_answer", "hallucinated_answer"),
)
_parse_sum = partial(
    _example,
    fields=("document",),
    blind="document",
    candidates=("right_summary", "hallucinated_summary"),
)


def _verify_halueval(questions: Sequence[tuple[Example, ...]]) -> str:
    require_count(questions, ITEMS)
    return f"first {ITEMS}"


_QA_SOURCE = Source(
    files=("halueval/qa_data.json", "HaluEval/qa_data.json", "qa_data.json"),
    hub="pminervini/HaluEval:qa",
    take=ITEMS,
)
_KNOWLEDGE = "Knowledge: {{ knowledge }}\nQuestion: {{ question }}\nAnswer:"
_CLOSED = "Question: {{ question }}\nAnswer:"
_DOCUMENT = "Document: {{ document }}\nSummary:"

HALUEVAL_QA = Benchmark(
    name="halueval-qa",
    read=_QA_SOURCE.read,
    parse=_parse_qa,
    verify=_verify_halueval,
    templates={"knowledge": _KNOWLEDGE},
    licence=_HALUEVAL_LICENCE,
    citation=_HALUEVAL_CITATION,
)

HALUEVAL_QA_CLOSED = replace(HALUEVAL_QA, name="halueval-qa-closed", templates={"closed": _CLOSED})

HALUEVAL_SUM = Benchmark(
    name="halueval-sum",
    read=Source(
        files=(
            "halueval/summarization_data.json",
            "HaluEval/summarization_data.json",
            "summarization_data.json",
        ),
        hub="pminervini/HaluEval:summarization",
        take=ITEMS,
    ).read,
    parse=_parse_sum,
    verify=_verify_halueval,
    templates={"document": _DOCUMENT},
    licence=_HALUEVAL_LICENCE,
    citation=_HALUEVAL_CITATION,
)

_FIB_FILES = ("fib/summarization_data.json", "fib.json", "fib.jsonl")
FIB = Benchmark(
    name="fib",
    # Both sets use the same file name: in a folder named fib it is FIB's, elsewhere HaluEval's.
    read=Source((*_FIB_FILES, f"../{_FIB_FILES[0]}")).read,
    parse=_parse_sum,
    templates={"document": _DOCUMENT},
    licence="CC BY 4.0",
    citation="Tam et al., Evaluating the Factual Consistency of Large Language Models Through "
    "News Summarization, Findings of ACL 2023",
)
