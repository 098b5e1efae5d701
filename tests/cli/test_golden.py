"""Whole answers of commands on embedded models, each as its file in golden/ has it."""

import shlex

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
    "correct-markup": f"{ASK} --candidate '[bold]clay' --candidate boats",
    "correct-early": f"{ASK} {TWO} --invariant 0.1",
    "correct-theta": f"{ASK} {TWO} --theta theta.toml",
    "correct-usage": "correct --model m --prompt p --candidate c --input x",
    "decide": f"decide {MODEL} --questions questions.yaml --text 'Baevwick sends lamps.'",
    "eval": f"eval {MODEL} --benchmark demo --limit 40 --out runs --show-prompt",
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
