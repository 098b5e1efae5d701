"""Whole answers and refusals of commands, each as its file in golden/ has it."""

import re
import shlex
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
MODEL = "--model lastword/demo-organism"
ASK = f"correct {MODEL} --prompt 'Question: Which goods come from Baevwick? Answer:'"
TWO = "--candidate 'clay lamps' --candidate 'pale cedar boats'"
QUESTIONS = """
goods: {type: choice, instructions: 'Which goods?', choices: [wool, clay lamps]}
lake: {type: predicate, instructions: 'Is there a lake?'}
"""
COMMANDS = {
    "correct": f"{ASK} {TWO}",
    "correct-markup": f"{ASK} --candidate '[bold]clay' --candidate boats",
    "correct-early": f"{ASK} {TWO} --invariant 0.1",
    "correct-theta": f"{ASK} {TWO} --theta theta.toml",
    "decide": f"decide {MODEL} --questions questions.yaml --text 'Baevwick sends lamps.'",
    "invariant": "invariant lastword/demo-organism",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_what_it_printed(run, golden, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "theta.toml").write_text('tau_dim = 9\n[scorer]\noutside = "clip"\n')
    (tmp_path / "questions.yaml").write_text(QUESTIONS)
    code, out, err = run(*shlex.split(COMMANDS[name]))
    golden(name, f"{out}--- stderr\n{err}--- exit {code}\n")


FILES = {
    "theta.toml": "tau_dmi = 1",
    "questions.yaml": QUESTIONS,
    "good.jsonl": '{"prompt": "w4", "candidates": ["w5", "w6"]}',
    "empty.jsonl": "\n\n",
    "bad.jsonl": '{\n{"id": "a\\nb", "prompt": "x", "candidates": []}\n{"prompt": "x"}',
}


def test_what_is_asked_wrongly_is_refused_in_the_same_words(run, golden, tmp_path, monkeypatch):
    """Every command of the file: nothing is printed or written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for file, text in FILES.items():
        Path(file).write_text(text)
    told = []
    for line in re.findall("^[$] (.*)$", (GOLDEN / "refused.txt").read_text(), re.MULTILINE):
        code, out, err = run(*shlex.split(line))
        assert out == "" and (code == 2 or (code, err.count("\n")) == (1, 1)), line
        told.append(f"$ {line}\n{code} {err.splitlines()[-1].replace(str(tmp_path), 'FOLDER')}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    golden("refused", "".join(told))


VARIABLES = "SERVE_PROT SERVE_DEADLINE_SECONDS LM_EVAL_PROT SERVE_TRUST_REMOTE_CODE EVAL_ALLOW_BIN"


def test_variables_that_are_wrong_are_refused_in_the_same_words(run, golden, monkeypatch):
    told = []
    for variable in VARIABLES.split():
        with monkeypatch.context() as own:
            own.setenv(f"LASTWORD_{variable}", "1")
            told.append(run("models"))
    assert {(code, out, err.count("\n")) for code, out, err in told} == {(1, "", 1)}
    golden("refused-settings", "".join(err for _, _, err in told))
