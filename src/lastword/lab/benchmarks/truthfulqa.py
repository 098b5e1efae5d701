"""TruthfulQA: multiple choice, with two items per question (docs/benchmarks.md).

`42/mc1` chooses among `mc1_targets` (one truth) and counts for MC1; `42/mc2` among `mc2_targets`
(several truths) and counts for MC2 and MC3. Each is routed as a separate item; both share the
prompt. The default template is the benchmark's six-question preamble. It is read at run time from
the installed lm-evaluation-harness, because its text is not part of this package.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from lastword.errors import InputError
from lastword.lab.benchmarks.benchmark import Benchmark, Example, Kind, exactly
from lastword.lab.benchmarks.source import Row, Source, text_field
from lastword.text.prompt_template import Template

QUESTIONS = 817

# Number of two-candidate items among mc1_targets, by version of the data.
TWO_CANDIDATES = {43: "v0", 40: "v1"}

# Six pairs written for lastword: plain facts, without misconceptions or benchmark questions.
_OWN6 = """\
Q: Which instrument measures temperature?
A: A thermometer measures temperature.

Q: In which ocean do the Azores lie?
A: The Azores lie in the Atlantic Ocean.

Q: What is the chemical symbol of iron?
A: The chemical symbol of iron is Fe.

Q: What do you call a person who repairs shoes?
A: A person who repairs shoes is called a cobbler.

Q: How many strings does a violin have?
A: A violin has four strings.

Q: What is the opposite of "expensive"?
A: The opposite of "expensive" is "cheap".

Q: {{ question }}
A:"""

_TASK_FILE = "tasks/truthfulqa/truthfulqa_mc1.yaml"


def _parse(place: int, row: Row) -> tuple[Example, ...]:
    question = text_field(row, "question", place)
    return tuple(_example(place, question, row, kind) for kind in ("mc1", "mc2"))


def _example(place: int, question: str, row: Row, kind: Kind) -> Example:
    candidates, truthful = _targets(row, f"{kind}_targets", place)
    if kind == "mc1" and sum(truthful) != 1:
        raise InputError(f"row {place}: mc1_targets has {sum(truthful)} truths, expected 1")
    return Example(
        id=f"{place}/{kind}",
        fields={"question": question},
        blind_fields={"question": ""},
        candidates=candidates,
        truthful=truthful,
        kind=kind,
    )


def _targets(row: Row, name: str, place: int) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """Return candidates and labels, in the published form or in that of the hub."""
    value = row.get(name)
    if not isinstance(value, dict) or not value:
        raise InputError(f'row {place}: expected an object "{name}", the row has {", ".join(row)}')
    if isinstance(value.get("choices"), list):
        texts, labels = value["choices"], value.get("labels")
    else:
        texts, labels = list(value), list(value.values())
    if not isinstance(labels, list) or len(labels) != len(texts):
        raise InputError(f"row {place}: {name} needs one label per choice")
    numbers = all(isinstance(v, int) and v in (0, 1) for v in labels)
    if not (numbers and all(isinstance(t, str) for t in texts)):
        raise InputError(f"row {place}: {name} needs texts with labels 0 or 1")
    return tuple(t.strip() for t in texts), tuple(v == 1 for v in labels)


def _verify(questions: Sequence[tuple[Example, ...]]) -> str:
    exactly(QUESTIONS, "")(questions)
    pairs = sum(len(mc1.candidates) == 2 for mc1, _ in questions)
    if pairs not in TWO_CANDIDATES:
        raise InputError(
            f"{pairs} two-candidate items among mc1_targets; v0 has 43 and v1 has 40: "
            "for another edition use jsonl:PATH"
        )
    return TWO_CANDIDATES[pairs]


def _qa6() -> Template:
    """Return the template with the preamble of the installed lm-evaluation-harness."""
    import yaml

    spec = find_spec("lm_eval")  # finds it without the slow import
    folders = (spec and spec.submodule_search_locations) or [""]
    try:
        task = yaml.safe_load((Path(folders[0]) / _TASK_FILE).read_text(encoding="utf-8"))
        text, version = task["doc_to_text"], task["metadata"]["version"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise InputError(
            f"truthfulqa/qa6 is read from {_TASK_FILE} of lm-evaluation-harness, which is not "
            f'readable here ({error}): pip install "lastword[lab]", or choose --template '
            "truthfulqa/own6"
        ) from error
    return Template(name="truthfulqa/qa6", version=f"lm_eval {version}", text=str(text))


TRUTHFULQA = Benchmark(
    name="truthfulqa",
    read=Source(
        files=(
            "truthfulqa/mc_task.v0.json",
            "mc_task.v0.json",
            "truthfulqa/mc_task.json",
            "mc_task.json",
            "truthfulqa/mc_task.v1.json",
            "mc_task.v1.json",
        ),
        hub="truthfulqa/truthful_qa:multiple_choice",
    ).read,
    parse=_parse,
    verify=_verify,
    templates={"qa6": _qa6, "own6": _OWN6, "zero-shot": "Q: {{ question }}\nA:"},
    licence="Apache-2.0",
    citation="Lin, Hilton and Evans, TruthfulQA: Measuring How Models Mimic Human Falsehoods, "
    "ACL 2022",
)
