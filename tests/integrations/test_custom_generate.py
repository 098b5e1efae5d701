"""The repository for transformers' `custom_generate`, as transformers itself loads and runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lastword import Tracer
from lastword.generation.decoding import generate

GENERATION = Path(__file__).parents[1] / "generation"
DOLA = json.loads((GENERATION / "transformers_dola.json").read_text())
PROMPT = DOLA["cases"][0]["prompt"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> str:
    from lastword.integrations.custom_generate import write

    out = tmp_path_factory.mktemp("repository") / "decoding"
    write(out)
    return str(out)


@pytest.fixture(scope="module")
def tracer() -> Tracer:
    return Tracer.demo()


def run_by(repository: str, tracer: Tracer, prompts: list[str], **options: Any) -> Any:
    inputs = tracer.tokenizer(prompts, return_tensors="pt", return_token_type_ids=False)
    model: Any = tracer.backbone.model
    given = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, **options}
    output = model.generate(
        **inputs, custom_generate=repository, trust_remote_code=True, pad_token_id=0, **given
    )
    ids = output if isinstance(output, torch.Tensor) else output.sequences
    return ids[:, inputs["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("decode", ["base", "trace", "dola", "sled"])
def test_the_repository_decodes_as_we_do(repository, tracer, decode):
    (tokens,) = run_by(repository, tracer, [PROMPT], decode=decode)
    assert len(tokens) == 8
    own = generate(tracer, PROMPT, decode, max_new_tokens=8, eos_token_id=None)
    assert tracer.tokenizer.decode(tokens, skip_special_tokens=True) == own


def test_the_ways_differ_and_the_rule_is_the_default(repository, tracer):
    ways = {d: run_by(repository, tracer, [PROMPT], decode=d) for d in ("trace", "base", "sled")}
    assert len({str(tokens) for tokens in ways.values()}) == 3
    assert run_by(repository, tracer, [PROMPT]) == ways["trace"]
    assert run_by(repository, tracer, [PROMPT], invariant=0.5, top=2) != ways["trace"]


@pytest.mark.parametrize("case", DOLA["cases"], ids=lambda c: f"{c['dola_layers']}")
def test_dola_is_transformers_own(repository, tracer, case):
    given = {name: case[name] for name in ("dola_layers", "repetition_penalty")}
    (tokens,) = run_by(repository, tracer, [case["prompt"]], decode="dola", **given)
    assert tokens == case["tokens"]


def test_dola_of_the_cases_is_not_the_models_own_and_penalties_count():
    cases = DOLA["cases"]
    assert len({str(case["tokens"]) for case in cases}) >= 5
    plain, penalised = (
        [c["tokens"] for c in cases if c["repetition_penalty"] == p] for p in (1, 1.5)
    )
    assert plain != penalised


def test_sampling_is_transformers_own(repository, tracer):
    options = {"decode": "dola", "do_sample": True, "temperature": 5.0, "num_return_sequences": 6}
    torch.manual_seed(0)
    rows = run_by(repository, tracer, [PROMPT], **options)
    assert len({str(row) for row in rows}) > 1


def test_what_it_needs_is_said_and_its_card_has_its_tag(repository):
    from transformers.dynamic_module_utils import check_python_requirements

    needed = Path(repository, "custom_generate", "requirements.txt")
    assert needed.read_text().startswith("lastword>=")
    check_python_requirements(repository, requirements_file="custom_generate/requirements.txt")
    header = Path(repository, "README.md").read_text().split("---")[1]
    assert yaml.safe_load(header) == {"library_name": "transformers", "tags": ["custom_generate"]}


def test_the_command_writes_it_and_says_so(run, tmp_path):
    out = tmp_path / "new" / "folder"
    code, said, err = run("export", "custom-generate", str(out))
    assert (code, said) == (0, "")
    written = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert written == [
        "README.md",
        "custom_generate/generate.py",
        "custom_generate/requirements.txt",
    ]
    assert [line.split()[-1] for line in err.splitlines()] == [
        str(out / name) for name in (*written[1:], written[0])
    ]
    (tmp_path / "file").write_text("")
    code, _, err = run("export", "custom-generate", str(tmp_path / "file"))
    assert code == 1 and err.count("\n") == 1 and "cannot write" in err
