"""The output of commands, compared with the files in golden/, and refusals."""

import shlex
from pathlib import Path

import pytest

MODEL = "--model lastword/demo-organism"
ASK = f"correct {MODEL} --prompt 'Question: Which goods come from Baevwick? Answer:'"
TWO = "--candidate 'clay lamps' --candidate 'pale cedar boats'"
QUESTIONS = """
goods: {type: choice, instructions: 'Which goods?', choices: [wool, clay lamps]}
lake: {type: predicate, instructions: 'Is there a lake?'}
"""
COMMANDS = {
    "correct": f"{ASK} {TWO}",
    "decide": f"decide {MODEL} --questions questions.yaml --text 'Baevwick sends lamps.'",
    "invariant": "invariant lastword/demo-organism",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_output_of_a_command_is_unchanged(run, golden, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "questions.yaml").write_text(QUESTIONS)
    code, out, err = run(*shlex.split(COMMANDS[name]))
    golden(name, f"{out}--- stderr\n{err}--- exit {code}\n")


def test_candidates_are_not_markup_and_changed_constants_are_named(run, tmp_path):
    (tmp_path / "theta.toml").write_text('tau_dim = 9\n[scorer]\noutside = "final"\n')
    theta = ("--load", f"theta={tmp_path / 'theta.toml'}")
    candidates = ("--candidate", "[bold]clay", "--candidate", "boats")
    code, out, _ = run(*shlex.split(ASK), *candidates, *theta)
    assert code == 0 and out.startswith("boats → [bold]clay\n")
    assert "theta: tau_dim = 9.0, scorer.outside = final" in out


FILES = {
    "theta.toml": "tau_dmi = 1",
    "questions.yaml": QUESTIONS,
    "good.jsonl": '{"prompt": "w4", "candidates": ["w5", "w6"]}',
    "empty.jsonl": "\n\n",
    "labelled.csv": "text,label\na,money\nb,\n",
    "bare.csv": "text\n",
    "unknown.csv": "text,label\na,unknown\nb,\n",
    "bad.jsonl": '{\n{"id": "a\\nb", "prompt": "x", "candidates": []}\n{"prompt": "x"}',
}
ONE = "--prompt p --candidate c"
DECIDE = f"decide {MODEL} --questions"
LABEL = f"label {MODEL} --choices animal,money"
# Wrong usage, and a part of its message.
USAGE = {
    "correct": "--model",
    "correct --model m --candidate c": "--prompt and at least one --candidate",
    f"correct --model m {ONE} --input x": "not both",
    f"correct --model m {ONE} --out x": "go with --input",
    f"correct --model m {ONE} --skip-invalid": "go with --input",
    f"correct --model m {ONE} --system s": "needs --chat-template",
    f"correct --model m {ONE} --dtype int3": "'bfloat16'",
    f"correct --model m {ONE} --load batch_tokens=0": "greater than or equal to 1",
    f"correct {MODEL} {ONE} --dtype bfloat16": "leave dtype out",
    f"correct {MODEL} {ONE} --device cuda": "leave device out",
    f"correct {MODEL} {ONE} --load revision=main": "leave revision out",
    f"correct {MODEL} {ONE} --load gguf=x.gguf": "leave gguf out",
    "nonsense": "nonsense",
    "invariant": "model",
    f"bench {MODEL} --against vllm": "plain base",
    f"eval {MODEL} --benchmark demo --seed 1": "--limit",
    "eval --model a --model b --benchmark demo --load alias=x": "alias names one model",
    "eval --model /no --benchmark jsonl:good.jsonl --limit 0": "--limit",
    "eval --model /no --benchmark demo --engine-options workers=2": "--engine ray",
    f"{DECIDE} questions.yaml --text x --input y.csv": "not both",
    f"{DECIDE} questions.yaml --out y.jsonl": "go with --input",
    f"serve {MODEL} --limits token=9": "tokens",
    f"label {MODEL} bare.csv": "choices",
}
# Errors in files and names, and a part of the message in one line.
ERRORS = {
    f"serve {MODEL} --limits tokens=0": "at least 1",
    f"{LABEL} labelled.csv": "has labels already",
    f"{LABEL} unknown.csv": "is not one of the options",
    f"{LABEL} bare.csv": "has no rows; expected a header and rows",
    f"{LABEL} missing.csv": "missing.csv",
    "feedback bare.csv --out more.csv": "give it to `lastword try`",
    f"correct --model lastword/demo-organ {ONE}": "mix-control",
    f"correct --model org/not-here {ONE}": "HF_HUB_OFFLINE",
    f"correct --model /no {ONE}": "config.json",
    f"correct --model /no {ONE} --candidate ' '": "candidate 1 is blank",
    f"correct --model /no {ONE} --load theta=theta.toml": "tau_dim",
    "correct --model /no --input bad.jsonl --out out.jsonl": "line 2: item a\\nb",
    "correct --model /no --input empty.jsonl": "no items",
    "correct --model /no --input empty.jsonl --skip-invalid": "no items",
    "correct --model /no --input none.jsonl": "cannot read none.jsonl",
    "correct --model /no --input none.jsonl --skip-invalid": "cannot read none.jsonl",
    "correct --model /no --input good.jsonl --out no/folder.jsonl": "no folder",
    "correct --model /no --input good.jsonl --out .": "expected a file",
    f"correct {MODEL} {ONE} --correction base-best": "base-mean",
    "invariant /no": "/no",
    f"bench {MODEL} --out none/bench.json": "no folder",
    f"bench {MODEL} --limit 2 --correction batch-calibrated": "batch-calibrated",
    f"eval {MODEL} --benchmark jsonl:good.jsonl --template jsonl/x": "jsonl:good/prompt",
    "eval --model org/not-here --benchmark trivia": "truthfulqa",
    "eval --model org/not-here --benchmark fib": "--data",
    "eval --model org/not-here --benchmark jsonl:good.jsonl --shard 2/2": "i/n",
    "eval --model org/not-here --benchmark halueval-qa --data nowhere": "nowhere",
    "eval --model /no/such/model --benchmark jsonl:none.jsonl": "/no/such/model",
    "eval --model no/such/file.gguf --benchmark jsonl:none.jsonl": "no/such/file.gguf",
    f"eval {MODEL} --benchmark demo --correction batch-calibrated --out out": "calibrated",
    "compare --model /no --benchmark jsonl:good.jsonl --method base-best": "base-mean",
    "merge none": "no records in none",
    f"{DECIDE} questions.yaml --text x --template decide/chat": "--chat-template",
    f"{DECIDE} questions.yaml --text x --template nothing": "decide/plain",
}


@pytest.mark.parametrize("line", [*USAGE, *ERRORS])
def test_invalid_commands_are_refused_and_write_nothing(run, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    for file, text in FILES.items():
        Path(file).write_text(text)
    code, out, err = run(*shlex.split(line))
    assert (code, out) == ((2, "") if line in USAGE else (1, ""))
    assert (USAGE | ERRORS)[line] in err.splitlines()[-1]
    assert line in USAGE or (err.startswith("lastword: ") and err.count("\n") == 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
