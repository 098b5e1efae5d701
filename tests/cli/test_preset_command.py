"""`lastword eval --preset paper`: order, precision, and what cannot be loaded here."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from families import save

from lastword.cli.groups import flattened
from lastword.cli.model import PresetModels, PresetOptions
from lastword.model import presets
from lastword.model.presets import Preset


@pytest.fixture
def items(tmp_path) -> Path:
    path = tmp_path / "items.jsonl"
    row = {"prompt": "w1 w4 w3", "candidates": ["w7", "w9 w5"], "truthful": [True, False]}
    path.write_text(json.dumps(row) + "\n")
    return path


def options_of(*arguments: str) -> list[PresetOptions]:
    """What a command gets for these arguments."""
    import typer
    from typer.testing import CliRunner

    seen: list = []

    def command(models: PresetModels) -> None:
        seen.extend(models)

    app = typer.Typer()
    app.command()(flattened(command))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return seen


def test_the_fifteen_in_order_of_size_at_the_papers_precision():
    chosen = options_of("--preset", "paper")
    assert [o.preset_name for o in chosen][:3] == ["Gemma-3-1B", "Gemma-3-4B", "LLaMA-7B"]
    assert chosen[-1].preset_name == "GPT-OSS-120B" and len(chosen) == 15
    by_name = {o.preset_name: (o.quantize, o.dtype) for o in chosen}
    assert by_name["LLaMA-13B"] == ("int8", "auto")
    assert by_name["Gemma-3-27B"] == ("nf4", "auto")
    assert by_name["Mixtral-8x7B"] == (None, "bfloat16")
    assert by_name["Qwen3-30B-A3B"] == by_name["GPT-OSS-20B"] == (None, "auto")


def test_what_is_asked_for_wins_over_the_papers_precision_and_models_go_beside():
    chosen = options_of("--preset", "paper", "--quantize", "nf4", "--dtype", "float32")
    assert {(o.quantize, o.dtype) for o in chosen} == {("nf4", "float32")}
    both = options_of("--model", "a/b", "--preset", "paper")
    assert [type(o).__name__ for o in both[:2]] == ["LoadOptions", "PresetOptions"]


def test_what_cannot_be_loaded_is_skipped_with_one_line(run, items, tmp_path, monkeypatch):
    for name, depth in (("small", 3), ("deeper", 4), ("shallow", 2)):
        save(tmp_path / name, "llama", num_hidden_layers=depth)
    base = Preset("?", "?", 0.0, 192, 1.0, "mix")
    three = tuple(
        replace(base, model=name.title(), hub=str(tmp_path / name), billions=size)
        for name, size in (("shallow", 3.0), ("deeper", 2.0), ("absent", 1.5), ("small", 1.0))
    )
    monkeypatch.setattr(presets, "presets", lambda: three)
    command = ("eval", "--preset", "paper", "--benchmark", f"jsonl:{items}", "--out", tmp_path)
    code, out, err = run(*command)
    skipped = [line for line in err.splitlines() if "skipped" in line]
    assert code == 0
    assert [line.split()[2] for line in skipped] == ["Absent:", "Shallow:"]
    assert "no model at" in skipped[0] and "at least 3 blocks" in skipped[1]
    assert out.index("small") < out.index("deeper") and "shallow" not in out
    monkeypatch.setattr(presets, "presets", lambda: three[:1])
    code, out, err = run(*command)
    assert code == 1 and err.splitlines()[-1].startswith("lastword: none of the models")


def test_neither_model_nor_preset_is_bad_usage(run, items):
    code, _, err = run("eval", "--benchmark", f"jsonl:{items}")
    assert code == 2 and "--preset" in err
