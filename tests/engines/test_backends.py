"""A tracer decides the same with the model in this process and in vLLM's."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gguf_files
import numpy as np
import pytest
import torch

from lastword import Choice, Item, Predicate, Score, Tracer
from lastword.decide.batch import Scope
from lastword.decide.decider import Decider, subject_of
from lastword.engines.vllm import backend as vllm
from lastword.engines.vllm.checkpoint import find
from lastword.engines.vllm.process import SideLostError
from lastword.engines.vllm.settings import VllmSettings
from lastword.errors import ElsewhereError, InputError
from lastword.methods import resolve
from lastword.model.backbone import watching
from lastword.model.options import LoadOptions
from lastword.model.reading import States, read
from lastword.rule.scorer import Scorer
from lastword.rule.theta import Theta
from lastword.text.forest import Reads

OPTIONS = LoadOptions("lastword/demo-organism")
ITEMS = [
    Item("What is the capital of", ("a", "bc", "d")),
    Item("Where is the lake of", ("one", "two")),
]


class Side:
    """A double of vLLM's process: it answers with the demo model, one sequence at a time.

    Args:
        losses: Numbers, from 1, of the calls of `compute` that lose the process.
    """

    model: Tracer
    started: list["Side"] = []

    def __init__(self, *_: Any, losses: tuple[int, ...] = ()) -> None:
        self.calls, self.losses, self.closed = Counter[str](), losses, False
        self.depths = set[int]()
        Side.started.append(self)

    def call(self, name: str, *arguments: Any) -> Any:
        self.calls[name] += 1
        return getattr(self, f"_{name}")(*arguments)

    def close(self) -> None:
        self.closed = True

    def _load(self, _: dict[str, Any]) -> dict[str, Any]:
        profile = self.model.profile
        sizes = {"depth": profile.depth, "vocabulary": profile.vocabulary}
        kind = {"dtype": "float32", "device": "cpu", "quantisation": None, "class": "Double"}
        return sizes | kind

    def _compute(self, requests: list[dict[str, Any]], rows: int, depths: list[int]) -> None:
        if self.calls["compute"] in self.losses:
            raise SideLostError("vLLM's process ended by signal SIGKILL")
        backbone = self.model.backbone
        self.hidden = {d: torch.zeros(rows, backbone.config.hidden_size) for d in depths}
        for one in requests:

            def keep(depth: int, state: torch.Tensor, one: dict[str, Any] = one) -> None:
                self.hidden[depth][one["rows"]] = state[0, one["positions"]]

            with torch.inference_mode(), watching(backbone.parts, depths, keep):
                backbone.parts.trunk(input_ids=torch.tensor([one["ids"]]))

    def _read(
        self, row: np.ndarray, token: np.ndarray, depths: list[int], theta: dict[str, Any] | None
    ) -> np.ndarray:
        self.depths |= set(depths)
        profile = self.model.profile
        scorers = [] if theta is None else [Scorer(Theta(), profile.depth, profile.vocabulary)]
        rows = np.arange(len(self.hidden[depths[0]]))
        reads = Reads(rows, row, token, np.arange(len(row)))
        states = States(self.hidden, reads)
        reading = read(self.model.readout, states, np.arange(len(row)), depths, scorers)
        numbers = [*(reading.log_probs[d] for d in depths), *reading.scores, reading.faults]
        return np.stack(numbers)

    def _log_probs(self, sequences: list[list[int]]) -> list[list[float]]:
        values = []
        with torch.inference_mode():
            for ids in sequences:
                tokens = torch.tensor([ids])
                logits = self.model.backbone.model(tokens).logits[0, :-1].log_softmax(-1)
                values.append(logits.gather(1, tokens[0, 1:, None])[:, 0].tolist())
        return values


@pytest.fixture(scope="module", autouse=True)
def organism() -> None:
    Side.model = Tracer.from_pretrained(OPTIONS)


def served(options: LoadOptions) -> Tracer:
    stored = find(options)
    backend = vllm.Vllm(stored, options, VllmSettings(), {"name": "vllm", "version": "0"})
    return Tracer.over(backend, stored.tokenizer, options, stored.invariant)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracer]:
    monkeypatch.setattr(vllm, "Process", Side)
    monkeypatch.setattr(Side, "started", [])
    tracer = served(OPTIONS)
    yield tracer
    tracer.backend.close()


def test_a_model_in_vllm_decides_as_in_this_process(remote):
    expected = Side.model.correct_many(ITEMS, read="all")
    for ours, plain in zip(remote.correct_many(ITEMS, read="all"), expected, strict=True):
        assert (ours.operator, ours.index) == (plain.operator, plain.index)
        assert ours.trajectory == pytest.approx(plain.trajectory, abs=1e-4)
    assert remote.describe()["engine"]["name"] == "vllm"
    assert remote.describe()["check"]["depths"] < 1e-4
    assert repr(remote) == repr(Side.model)


def test_a_gguf_file_converted_for_vllm_has_the_same_digest(tmp_path, monkeypatch):
    file = gguf_files.write(tmp_path / "m.gguf", gguf_files.build("llama"))
    options = LoadOptions(str(file))
    here = Tracer.from_pretrained(options)
    monkeypatch.setattr(vllm, "Process", Side)
    monkeypatch.setattr(Side, "model", here)
    elsewhere = served(options)
    assert subject_of(elsewhere) == subject_of(here)  # so that a probe fits both
    assert here.digests["weights"]
    assert elsewhere.describe()["gguf"] == "m.gguf"
    elsewhere.backend.close()


@pytest.mark.parametrize("name", ["pmi@0.5", "dcpmi", "contextual", "trace-gated"])
def test_corrections_decide_the_same_in_vllm(remote, name):
    elsewhere, here = served(OPTIONS), Tracer.from_pretrained(OPTIONS)
    side = Side.started[-1]
    side.depths.clear()  # the check at load has read every depth
    items = [
        replace(item, blind_prompt="of", content_free=("the N/A of", "the of", "the [MASK] of"))
        for item in ITEMS
    ]
    both = (Decider(one, correction=name).correct_many(items) for one in (elsewhere, here))
    for ours, plain in zip(*both, strict=True):
        assert (ours.method, ours.operator, ours.index) == (name, plain.operator, plain.index)
        np.testing.assert_allclose(ours.scores, plain.scores, atol=1e-4)
    last = elsewhere.profile.depth
    assert side.depths == {last} if name != "trace-gated" else last in side.depths
    elsewhere.backend.close()


def test_questions_are_answered_the_same_in_vllm(remote):
    questions = {
        "goods": Choice("Which goods?", ["clay lamps", "green wool combs", "clay"]),
        "lake": Predicate("Baevwick lies on a lake."),
        "far": Score("How far?", ["near", "far"]),
    }
    text = "The folk of Baevwick send clay lamps over the lake."
    here = Decider(Side.model).decide(text, questions)
    for name, answer in Decider(remote).decide(text, questions).items():
        np.testing.assert_allclose(answer.probabilities, here[name].probabilities, atol=1e-4)


def test_calls_that_need_the_model_itself_are_refused_with_vllm(remote):
    assert not hasattr(remote, "backbone") and not hasattr(remote, "readout")
    assert not hasattr(remote.backend, "model")
    with pytest.raises(
        ElsewhereError, match=r"^reading I\(M\) needs the model itself, which vLLM has"
    ):
        Tracer.over(remote.backend, remote.tokenizer, OPTIONS)
    encoded: Any = remote.encode(ITEMS[:1])
    for name in ("dola", "sled", "delta"):
        methods = resolve([name], remote.facts)
        with pytest.raises(InputError, match=f"method {name} reads whole vocabularies and so"):
            remote.compare(encoded, methods)
        with pytest.raises(InputError, match=f"method {name} reads whole vocabularies and so"):
            remote.decide_group(encoded, Scope(methods=methods))


def test_a_lost_process_is_replaced_and_its_group_repeated(remote, caplog):
    (first,) = Side.started
    first.losses = (first.calls["compute"] + 1,)
    assert len(list(remote.correct_many(ITEMS))) == 2
    assert len(Side.started) == 2 and "starting another" in caplog.text
    remote.backend.close()
    assert Side.started[-1].closed


def test_a_group_that_ends_every_process_stops_the_run(remote, monkeypatch):
    monkeypatch.setattr(vllm, "Process", lambda *_: Side(losses=(1,)))
    Side.started[0].losses = (Side.started[0].calls["compute"] + 1,)
    with pytest.raises(SideLostError):
        list(remote.correct_many(ITEMS))
    assert len(Side.started) == vllm.MOST_LOSSES
