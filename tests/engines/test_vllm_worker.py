"""The states that a worker stores equal those of a plain pass; a double runs chosen steps."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lastword.engines.vllm.worker import NAME, Watch

VOCAB, WIDTH, DEPTH = 19, 8, 4


class Apart(nn.Module):
    """A block like llama's: it adds the residual first, and returns it separately."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, positions: Any, hidden_states: Any, residual: Any) -> Any:
        residual = hidden_states if residual is None else hidden_states + residual
        return torch.tanh(self.inner(residual)), residual


class Summed(Apart):
    """A block like stablelm's: it returns the sum and another tensor."""

    def forward(self, positions: Any, hidden_states: Any) -> Any:  # type: ignore[override]
        return hidden_states + torch.tanh(self.inner(hidden_states)), hidden_states


class Single(Summed):
    """A block like gpt2's: it returns one tensor."""

    def forward(self, hidden_states: Any) -> Any:  # type: ignore[override]
        return super().forward(None, hidden_states)[0]


class Model(nn.Module):
    """A causal model with one kind of block; a row depends only on its token."""

    def __init__(self, block: type[nn.Module], has_logits: bool = True) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(block() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB)
        self.has_logits = has_logits

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Return the state at every depth, with the residual added."""
        hidden, residual = self.embedding(tokens), None
        states = [hidden]
        for layer in self.layers:
            if isinstance(layer, Single):
                hidden = layer(hidden)
            elif isinstance(layer, Summed):
                hidden, _ = layer(None, hidden)
            else:
                hidden, residual = layer(None, hidden, residual)
            states.append(hidden if residual is None else hidden + residual)
        return states

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        return self.head(hidden) if self.has_logits else None


class Compiled(Model):
    """A model whose trunk also returns the states of the requested layers."""

    supports_eagle3 = True
    requested_layers: tuple[int, ...] = ()

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.requested_layers = layers

    def forward(self, tokens: torch.Tensor) -> Any:
        states = super().forward(tokens)
        return self.norm(states[-1]), [states[depth] for depth in self.requested_layers]


class Runner:
    """The part of vLLM's runner that the hooks use: it runs the tokens of a step."""

    device = torch.device("cpu")

    def __init__(self, model: Model) -> None:
        self.model = model
        self.model_config = SimpleNamespace(
            dtype=torch.float32,
            head_dtype=torch.float32,
            quantization=None,
            hf_text_config=SimpleNamespace(vocab_size=VOCAB),
            get_hidden_size=lambda: WIDTH,
            get_total_num_hidden_layers=lambda: DEPTH,
        )
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_ids=[], num_computed_tokens_cpu=np.zeros(0))

    def get_model(self) -> Model:
        return self.model

    def add_request(self, name: str, ids: list[int], rows: dict[int, int]) -> None:
        """Add a request with the row of each of its positions."""
        extra_args = {NAME: {"positions": [*rows], "rows": [*rows.values()]}} if rows else None
        self.requests[name] = SimpleNamespace(
            ids=ids, sampling_params=SimpleNamespace(extra_args=extra_args)
        )

    def execute_model(self, scheduled: Any) -> torch.Tensor:
        names = self.input_batch.req_ids
        tokens: list[int] = []
        for name, start in zip(names, self.input_batch.num_computed_tokens_cpu, strict=True):
            tokens += self.requests[name].ids[start : start + scheduled.num_scheduled_tokens[name]]
        return self.model(torch.tensor(tokens + [0, 0]))  # padded, as vLLM pads

    def step(self, **spans: tuple[int, int]) -> torch.Tensor:
        """Compute a span of each request: its start and its number of tokens."""
        self.input_batch.req_ids = [*spans]
        self.input_batch.num_computed_tokens_cpu = np.array([s for s, _ in spans.values()])
        counts = {name: count for name, (_, count) in spans.items()}
        return self.execute_model(SimpleNamespace(num_scheduled_tokens=counts))


IDS = [3, 1, 4, 1, 5, 9, 2, 6]


def expected(model: Model, tokens: list[int], targets: list[int]) -> np.ndarray:
    """Return the log-probabilities of the targets after each token, by a plain pass."""
    with torch.no_grad():
        logits = [model.head(model.norm(state)) for state in model(torch.tensor(tokens))]
    rows = torch.arange(len(targets))
    return np.stack([F.log_softmax(z, dim=-1)[rows, torch.tensor(targets)] for z in logits])


def read(watch: Watch, rows: list[int], targets: list[int]) -> np.ndarray:
    depths = [*range(DEPTH + 1)]
    *values, faults = watch.read(np.array(rows), np.array(targets), depths, None)
    assert set(faults) == {-1}
    return np.array(values)


@pytest.mark.parametrize("block", [Apart, Summed, Single])
class TestRowsAreRead:
    @pytest.fixture
    def runner(self, block: type[nn.Module]) -> Runner:
        return Runner(Model(block))

    def test_over_chunks_with_other_requests(self, runner):
        watch = Watch(runner)
        watch.open(3, [*range(DEPTH + 1)])
        runner.add_request("other", [7] * 8, {})
        runner.add_request("one", IDS, {1: 2, 4: 0, 6: 1})
        runner.step(other=(0, 3), one=(0, 2))
        assert watch.gaps() == [0, 1]
        runner.step(one=(2, 3), other=(3, 2))
        assert watch.gaps() == [1]
        runner.step(other=(5, 1), one=(5, 2))
        assert watch.gaps() == []
        targets = [8, 0, 11]
        tokens = [IDS[4], IDS[6], IDS[1]]
        assert np.allclose(
            read(watch, [0, 1, 2], targets), expected(runner.model, tokens, targets), atol=1e-6
        )

    def test_over_a_preemption(self, runner):
        watch = Watch(runner)
        watch.open(2, [*range(DEPTH + 1)])
        runner.add_request("one", IDS, {2: 0, 7: 1})
        runner.step(one=(0, 5))
        runner.step(one=(0, 3))  # started again, in other steps
        runner.step(one=(3, 5))
        assert watch.gaps() == []
        targets = [1, 2]
        assert np.allclose(
            read(watch, [0, 1], targets),
            expected(runner.model, [IDS[2], IDS[7]], targets),
            atol=1e-6,
        )

    def test_of_one_batch_at_a_time(self, runner):
        watch = Watch(runner)
        watch.open(1, [DEPTH])
        runner.add_request("one", IDS, {0: 0})
        runner.step(one=(0, 8))
        assert watch.gaps() == []
        watch.open(1, [DEPTH])
        assert watch.gaps() == [0]


def test_a_compiled_trunk_returns_states_that_the_hooks_remove_from_its_output():
    runner = Runner(Compiled(Apart))
    watch = Watch(runner, compiled=True)
    watch.open(2, [0, 2, DEPTH])
    runner.add_request("one", IDS, {2: 1, 5: 0})
    plain = Model.forward(runner.model, torch.tensor(IDS))
    assert torch.equal(runner.step(one=(0, 8))[:8], runner.model.norm(plain[-1]))
    assert watch.gaps() == []
    for depth in (0, 2, DEPTH):
        assert torch.equal(watch._hidden[depth], plain[depth][[5, 2]])


def test_a_model_that_returns_no_states_when_compiled_is_refused():
    with pytest.raises(ValueError, match="Model gives no states when it is compiled"):
        Watch(Runner(Model(Apart)), compiled=True)


def watched(runner: Runner, depths: Sequence[int], rows: dict[int, int], first: int = 0) -> Watch:
    """Return the watch of one request that is computed from `first` on in one step."""
    watch = Watch(runner)
    watch.open(len(rows), [*depths])
    runner.add_request("one", IDS, rows)
    runner.step(one=(first, len(IDS) - first))
    return watch


def test_a_row_inside_a_cached_prefix_is_missing():
    # vLLM has cached the first four tokens.
    watch = watched(Runner(Model(Apart)), [DEPTH], {3: 0, 6: 1}, first=4)
    assert watch.gaps() == [0]


def test_t_is_read_with_s():
    watch = watched(Runner(Model(Apart)), range(DEPTH + 1), {3: 0})
    numbers = watch.read(np.array([0]), np.array([4]), [*range(DEPTH + 1)], {})[:-1]
    assert numbers.shape == (DEPTH + 2, 1)
    assert np.isfinite(numbers).all() and numbers[DEPTH + 1] not in numbers[: DEPTH + 1]


def test_logits_that_are_not_finite_name_their_depth():
    watch = watched(Runner(Model(Apart)), [0, 2], {0: 0})
    watch._hidden[2][:] = torch.nan
    assert watch.read(np.array([0]), np.array([1]), [0, 2], None)[-1] == [2]


def test_a_rank_without_logits_still_takes_part():
    watch = watched(Runner(Model(Apart, has_logits=False)), [DEPTH], {0: 0})
    assert watch.read(np.array([0]), np.array([1]), [DEPTH], None).shape == (2, 1)


def test_a_model_with_an_unexpected_number_of_blocks_is_refused_by_name():
    runner = Runner(Model(Apart))
    runner.model.layers.append(Apart())
    with pytest.raises(ValueError, match="Model has 0 lists of 4 blocks where one is expected"):
        Watch(runner)
