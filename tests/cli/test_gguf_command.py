"""GGUF files and aliases on the command line; every command takes the same option."""

import json
from pathlib import Path

import gguf_files
import pytest

from lastword import load_records
from lastword.model import named


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small llama with a context that is long enough for questions in bytes."""
    model = gguf_files.build("llama", max_position_embeddings=4096)
    return gguf_files.write(tmp_path_factory.mktemp("gguf") / "m.Q8_0.gguf", model, stored="Q8_0")


def test_correct(run, path):
    args = ("--prompt", "the tea", "--candidate", "is hot", "--candidate", "is not", "--json")
    code, out, err = run("correct", "--model", path, "--device", "cpu", *args)
    assert (code, err) == (0, "")  # no progress bar of transformers on stderr
    assert json.loads(out)["answer"] in ("is hot", "is not")
    in_folder = ("--model", path.parent, "--load", f"gguf={path.name}")
    assert run("correct", *in_folder, "--device", "cpu", *args) == (0, out, "")


def test_eval_records_the_file_and_an_alias(run, path, tmp_path):
    options = ("--benchmark", "everyday", "--limit", 2, "--device", "cpu", "--out", tmp_path)
    loaded = ("--load", f"gguf={path.name}", "--load", "alias=mine")
    command = ("eval", "--model", path.parent, *loaded, *options)
    code, out, err = run(*command)
    assert code == 0 and "mine" in out, err
    (written,) = tmp_path.rglob("run.json")
    recorded = json.loads(written.read_text(encoding="utf-8"))
    assert (recorded["model"], recorded["path"]) == ("mine", str(path))
    assert (recorded["gguf"], recorded["quantisation"]) == (path.name, "Q8_0 (GGUF), dequantised")
    assert set(load_records(tmp_path)["model"]) == {"mine"}
    code, _, err = run(*command, "--model", path)
    assert code == 2 and "alias" in err


def test_get_prints_the_path_of_the_file(run, tmp_path, monkeypatch):
    monkeypatch.setenv("LASTWORD_CACHE", str(tmp_path))
    model = named.PUBLISHED["smollm2-135m"]
    model.path.parent.mkdir()
    with model.path.open("wb") as file:
        file.truncate(model.size)
    assert run("get", "smollm2-135m") == (0, f"{model.path}\n", "")
