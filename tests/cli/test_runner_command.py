"""`lastword eval` and `lastword merge` on tiny random models."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from families import save

import lastword
import lastword.cli
from lastword import Decider
from lastword.cli import progress
from lastword.decide.options import DecideOptions
from lastword.lab.benchmarks.ready import jsonl
from lastword.lab.evaluation.runner import finished
from lastword.lab.evaluation.work import Work
from lastword.model.options import LoadOptions
from lastword.records.store import WHOLE, Shard
from lastword.rule.theta import Theta
from lastword.text.chat import Chat

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama", "qwen3"):
        save(folder / name, name)
    return [str(folder / name) for name in ("llama", "qwen3")]


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("items") / "mine.jsonl"
    rows = [
        {"id": f"i{k}", "prompt": f"w1 w{k} w3", "question": f"w{k}", "truthful": 0}
        | {"candidates": [f"w{k + 5} w7", f"w{k + 9}", "w4 w5 w6"][: 2 + k % 2]}
        for k in range(10, 22)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def eval_(model: str, items: Path, out: Path, *more: object) -> list[object]:
    return ["eval", "--model", model, "--benchmark", f"jsonl:{items}", "--out", out, *more]


def table(out: str) -> list[list[str]]:
    """Return the cells of the printed table, by row."""
    lines = [line for line in out.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "--" not in line]


def test_several_models_and_templates_give_one_table(run, models, items, tmp_path):
    template = tmp_path / "bare.jinja"
    template.write_text("{{ prompt }} w2\n")
    arguments = eval_(models[0], items, tmp_path / "runs", "--model", models[1])
    code, out, _ = run(*arguments)
    assert code == 0
    title, *rows = table(out)
    assert title[:3] == ["Model", "Benchmark", "Items"]
    assert [row[:3] for row in rows] == [[m, "jsonl:mine", "12"] for m in ("llama", "qwen3")]
    assert run(*arguments, "--template", template, "--blind", "all")[0] == 0
    records = lastword.load_records(tmp_path / "runs")
    counts = records.groupby(["model", "benchmark"]).size().to_dict()
    names = "jsonl:mine", "jsonl:mine@user-bare"
    assert counts == {(model, name): 12 for model in ("llama", "qwen3") for name in names}
    row = records[records["benchmark"] == "jsonl:mine@user-bare"].iloc[0]
    assert row["prompt"] == "w1 w10 w3 w2"
    assert list(row["blind_trajectory"][:, -1]) == list(row["blind_scores"])


@pytest.mark.parametrize(
    ("more", "size"),
    [((), 0), (("--load", "prefix_cache=64"), 64), (("--load", "prefix_cache=256"), 256)],
)
def test_an_evaluation_caches_prefixes_only_if_asked(
    run, models, items, tmp_path, monkeypatch, more, size
):
    sizes = []

    def load(model: DecideOptions) -> Decider:
        sizes.append(model.prefix_cache)
        return Decider.from_pretrained(model)

    monkeypatch.setattr("lastword.cli.evaluate.load_decider", load)
    assert run(*eval_(models[0], items, tmp_path / "runs", *more))[0] == 0
    assert sizes == [size]


AGAIN = """
import sys
from lastword.cli import main
sys.argv[0] = "lastword"
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
print(sorted({"torch", "transformers", "scipy.stats"} & set(sys.modules)))
"""


def test_a_finished_run_starts_again_without_torch(run, models, items, tmp_path):
    arguments = [*map(str, eval_(models[0], items, tmp_path))]
    code, out, _ = run(*arguments)
    again = subprocess.run(
        [sys.executable, "-c", AGAIN, *arguments], capture_output=True, text=True, check=True
    )
    assert (code, again.stdout, again.stderr) == (0, f"{out}[]\n", "")


def test_a_finished_run_is_found_only_by_the_same_options_and_files(
    run, models, items, tmp_path, monkeypatch
):
    folder = tmp_path / "model"
    shutil.copytree(models[0], folder)
    data = jsonl(items).load()
    template = data.benchmark.template()

    def find_run(out: str = "runs", **options: Any) -> Any:
        work = Work(data, template, options.pop("blind", "base"))
        shard = options.pop("shard", WHOLE)
        return finished(LoadOptions(str(folder), **options), work, tmp_path / out, shard)

    assert find_run() is None
    assert run(*eval_(str(folder), items, tmp_path / "runs"))[0] == 0
    assert run(*eval_(str(folder), items, tmp_path / "parts", "--shard", "0/2"))[0] == 0
    assert find_run(device="cpu", batch_tokens=7).items == 12
    half = find_run("parts", shard=Shard(0, 2))
    assert half.items == half.resumed > 0
    assert find_run("parts") is None and find_run("parts", shard=Shard(1, 2)) is None
    others = {"dtype": "bfloat16", "theta": Theta(tau_dim=1.01), "chat": Chat("Be brief.")}
    others |= {"invariant": 3.0, "blind": "none"}
    for name, value in others.items():
        assert find_run(**{name: value}) is None, name
    with monkeypatch.context() as patch:
        patch.setattr("lastword.records.info.version", lambda name: "9.9")
        assert find_run() is None
    part = next((tmp_path / "runs").rglob("part-*.parquet"))
    whole = part.read_bytes()
    part.write_bytes(whole[:100])
    assert find_run() is None
    part.write_bytes(whole)
    assert find_run() is not None
    weights = next(folder.glob("*.safetensors"))
    weights.write_bytes(bytes(b ^ 1 for b in weights.read_bytes()))
    assert find_run() is None


def test_the_table_agrees_with_the_records(run, models, items, tmp_path):
    _, out, _ = run(*eval_(models[0], items, tmp_path))
    titles, numbers = table(out)
    records = lastword.load_records(tmp_path)
    row = dict(zip(titles, numbers, strict=True))
    gain = (records["mc1"] - records["mc1_base"]).mean()
    means = {"MC1 base": records["mc1_base"].mean(), "MC2": records["mc2"].mean(), "ΔMC1": gain}
    for name, mean in means.items():
        assert float(row[name]) == pytest.approx(100 * mean, abs=0.006)
    (cell,) = json.loads(run(*eval_(models[0], items, tmp_path, "--json"))[1])
    assert cell["mc2"] == pytest.approx(records["mc2"].mean())
    assert (cell["model"], cell["counts"]["items"]) == ("llama", 12)
    *_, verdict, controls = out.splitlines()
    assert verdict == f"llama on jsonl:mine: {cell['verdict']}"
    assert f"chance {100 * cell['chance']:.2f}, shortest" in controls


def test_shards_and_merge(run, models, items, tmp_path):
    few = ("--load", "batch_tokens=24", "--blind", "none")
    assert run(*eval_(models[0], items, tmp_path / "whole", *few))[0] == 0
    whole = lastword.load_records(tmp_path / "whole")
    for i, says in enumerate(("6 of 12 records, 6 missing", "12 of 12 records")):
        arguments = eval_(models[0], items, tmp_path / f"s{i}", "--shard", f"{i}/2", *few)
        assert run(*arguments)[0] == 0
        sources = [tmp_path / f"s{j}" for j in range(i + 1)]
        code, out, _ = run("merge", *sources, "--out", tmp_path / "all")
        assert code == 0 and out.strip().endswith(says)
    joined = lastword.load_records(tmp_path / "all")
    assert list(joined["id"]) == list(whole["id"])
    assert list(joined["mc2"]) == pytest.approx(list(whole["mc2"]), abs=1e-5)
    one = ("--limit", "1", "--shard", "1/2")
    code, _, err = run(*eval_(models[0], items, tmp_path / "few", *one))
    assert code == 0 and "this shard" in err


LONG = {"id": "long", "prompt": "w8 " * 5000, "candidates": ["w2", "w3"]}


def test_failed_items_are_reported_on_stderr(run, models, items, tmp_path):
    long = tmp_path / "long.jsonl"
    long.write_text(items.read_text() + "\n" + json.dumps(LONG))
    code, out, err = run(*eval_(models[0], long, tmp_path / "runs"))
    assert code == 0 and "1 of 13 records" in err and "item long: candidate 0" in err
    titles, numbers = table(out)
    assert (titles[2], numbers[2], titles[-1], numbers[-1]) == ("Items", "12", "Failed", "1")
    code, _, err = run(*eval_(models[0], long, tmp_path / "cut", "--load", "overflow=truncate"))
    assert code == 0 and "failed" not in err
    assert lastword.load_records(tmp_path / "cut")["truncated"].max() > 0
    long.write_text(json.dumps(LONG))
    for _ in range(2):  # the finished run is read again
        code, out, err = run(*eval_(models[0], long, tmp_path / "failed"))
        assert code == 1 and "1 of 1 records are of items that failed" in err


@pytest.mark.parametrize(
    ("theta", "row"),
    [
        ('[scorer]\noutside = "clip"\nfloor = "final"', "T: clip-final"),
        ('[scorer]\noutside = "final"', "T: final-anchor"),
        ('[invariant]\noutput_rows = "input"\nblock = "depth"', "I(M): input/depth/stored"),
    ],
)
def test_the_row_of_a_reading_equals_a_run_with_it(theta, row, run, models, items, tmp_path):
    constants = "tau_dim = 1e9\ntau_I = {}\n[scorer]\nk_min = 12\n"
    tau = 0.0 if row.startswith("T") else middle(run, models[0])
    (tmp_path / "first.toml").write_text(constants.format(tau))
    section, switches = theta.split("\n", 1)
    other = constants.format(tau) + (switches if section == "[scorer]" else theta)
    (tmp_path / "other.toml").write_text(other)
    deltas = {}
    for name in ("first", "other"):
        load = ("--load", f"theta={tmp_path / name}.toml")
        assert run(*eval_(models[0], items, tmp_path / name, *load))[0] == 0
        code, out, _ = run("ablate", tmp_path / name, "--json")
        assert code == 0
        rows = {r.get("Variant") or r.get("Reading"): r for t in json.loads(out) for r in t["rows"]}
        deltas[name] = {label: (r["ΔMC1"], r["ΔMC2"]) for label, r in rows.items() if label}
    assert deltas["first"][row] == pytest.approx(deltas["other"]["TRACE (as run)"], abs=1e-4)
    assert deltas["first"][row] != pytest.approx(deltas["first"]["TRACE (as run)"], abs=1e-4)


def middle(run: Run, model: str) -> float:
    """Return a value between I(M) by the default reading and by the tested one."""
    code, out, _ = run("invariant", model, "--json")
    readings = json.loads(out)["readings"]
    assert code == 0 and len(readings) == 8
    return (readings["stored/zero/stored"] + readings["input/depth/stored"]) / 2


def test_progress_without_a_terminal_is_printed_as_occasional_lines(capsys, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("lastword.cli.progress.time.monotonic", lambda: clock[0])
    with progress.counting("m on b", 100) as countdown:
        countdown.advance(20)  # resumed
        for _ in range(4):
            clock[0] += 20.0
            countdown.advance(10)
    with progress.counting("m on b", 100) as countdown:
        countdown.advance(0)
        clock[0] += 40.0
        countdown.advance(0)  # without a rate there is no time left to print
    *lines, last = capsys.readouterr().err.splitlines()
    assert last == "m on b: 0 of 100"
    assert lines == ["m on b: 40 of 100, 120 s left", "m on b: 60 of 100, 80 s left"]
