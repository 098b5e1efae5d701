"""Result files of other evaluation tools."""

import json
from pathlib import Path

import pytest

from lastword.errors import InputError
from lastword.trust.predictions import read_plain

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_two_providers_of_promptfoo_are_prediction_and_rival():
    table = read_plain(EXAMPLES / "promptfoo-results.json")
    results = json.loads((EXAMPLES / "promptfoo-results.json").read_text())["results"]["results"]
    assert len(table.rows) == len(results) // 2 == 24
    assert (table.columns.truth, table.columns.text) == ("label", "text")
    right = {f"echo:{name}": 0 for name in ("new", "old")}
    for result in results:
        right[result["provider"]["id"]] += result["success"]
    assert (table.predictions == table.truths).sum() == right["echo:new"]
    assert (table.column(table.columns.rival) == table.truths).sum() == right["echo:old"]


def test_samples_of_the_harness_have_its_accuracy():
    table = read_plain(EXAMPLES / "samples_quiz.jsonl")
    lines = (EXAMPLES / "samples_quiz.jsonl").read_text().splitlines()
    accuracies = [json.loads(line)["acc"] for line in lines]
    assert (table.predictions == table.truths).tolist() == [acc == 1 for acc in accuracies]
    assert (table.confidence > 0).all()


def test_generated_answers_of_the_harness_are_compared_as_text(tmp_path):
    sample = {"doc_id": 0, "target": "42", "filtered_resps": ["42"]}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample))
    table = read_plain(tmp_path / "samples.jsonl")
    assert table.predictions.tolist() == table.truths.tolist() == ["42"]
    assert table.confidence is None


@pytest.mark.parametrize(
    "runs, reason", [([{"output": "a"}] * 3, "test 1: 3 runs"), ([None], "test 1: no output")]
)
def test_a_test_without_one_output_is_named(tmp_path, runs, reason):
    results = [{"testIdx": 0, "vars": {"label": "a"}, "response": run} for run in runs]
    (tmp_path / "out.json").write_text(json.dumps({"results": {"results": results}}))
    with pytest.raises(InputError, match=reason):
        read_plain(tmp_path / "out.json")


@pytest.mark.parametrize(
    "result",
    [
        *(1, {}, {"response": {"output": "a"}}, {"vars": "a", "response": {"output": "a"}}),
        {"vars": {"label": "a"}, "response": "a"},
    ],
)
def test_an_invalid_result_of_promptfoo_is_named(tmp_path, result):
    (tmp_path / "out.json").write_text(json.dumps({"results": {"results": [result]}}))
    with pytest.raises(InputError, match="result 1 is not a test of promptfoo"):
        read_plain(tmp_path / "out.json")


@pytest.mark.parametrize("answers", [[], 5, [["a", "b"], ["c", "d"]], [[1.0, True]]])
def test_a_sample_of_the_harness_without_an_answer_is_named(tmp_path, answers):
    sample = {"doc_id": 0, "target": 0, "filtered_resps": answers}
    (tmp_path / "samples.jsonl").write_text(json.dumps(sample))
    with pytest.raises(InputError, match="line 1: filtered_resps holds neither"):
        read_plain(tmp_path / "samples.jsonl")


@pytest.mark.parametrize("results", [None, False, 3])
def test_a_file_without_a_list_of_results_is_not_read_as_promptfoo(tmp_path, results):
    (tmp_path / "out.json").write_text(json.dumps({"results": {"results": results}}))
    with pytest.raises(InputError, match="no column for the prediction"):
        read_plain(tmp_path / "out.json")
