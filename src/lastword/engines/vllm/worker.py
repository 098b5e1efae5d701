"""A vLLM worker that also stores the states of rows, and reads them out.

It runs in vLLM's environment. Rows are identified by request and position: the `extra_args` of a
request map its positions to rows of the batch. This is correct even with chunked prefill, with
prefixes that another request has computed, and with requests that are preempted and restarted.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lastword.model.reading import States, dtype_name, read, tile_rows
from lastword.model.weights.layouts import AFTER_NORM, FINAL_NORMS, first_module
from lastword.rule.scorer import Scorer
from lastword.rule.theta import Theta
from lastword.text.forest import Reads

NAME = "lastword"  # key of our part of a request's extra arguments


class Extension:
    """Methods that are mixed into vLLM's worker and called by name on every rank."""

    def lastword_watch(self, compiled: bool = False) -> dict[str, Any]:
        """Install the hooks on the first call, and return the model's facts."""
        if not hasattr(self, "_lastword"):
            runner = self.model_runner  # type: ignore[attr-defined]
            self._lastword = Watch(runner, compiled=compiled)
        return self._lastword.facts()

    def lastword_call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a method of `Watch`."""
        return getattr(self._lastword, name)(*arguments)


class Watch:
    """The hooks of one worker, and the states of the current batch.

    Args:
        runner: vLLM's model runner.
        compiled: True if the blocks are going to be compiled. Their hooks do not run in a graph,
            so the graph itself has to return the state at every depth.

    Raises:
        ValueError: The model's blocks cannot be found, or their graph returns no states.
    """

    def __init__(self, runner: Any, *, compiled: bool = False) -> None:
        self._runner = runner
        self._model: nn.Module = runner.get_model()
        depth = runner.model_config.get_total_num_hidden_layers()
        self._trunk, self._blocks = locate(self._model, depth)
        self._head = VllmHead(self._model, self._trunk, runner.model_config.hf_text_config)
        self._step: Any = None
        self._places: tuple[Tensor, Tensor] | None = None
        self.open(0, [])
        self._execute = runner.execute_model
        runner.execute_model = self._execute_step
        if compiled:
            self._return_states(depth)
            return
        for level, block in enumerate(self._blocks):
            block.register_forward_pre_hook(self._before(level, block), with_kwargs=True)
        last = self._blocks[depth - 1]
        last.register_forward_hook(self._after(depth, takes_residual(last)))

    def facts(self) -> dict[str, Any]:
        """Return facts that are known only after loading the model."""
        runner = self._runner
        return {
            "depth": len(self._blocks),
            "vocabulary": self._head.vocabulary,
            "class": type(self._model).__name__,
            "device": str(runner.device),
            "dtype": dtype_name(runner.model_config.dtype),
            "quantisation": runner.model_config.quantization,
            "head_dtype": dtype_name(runner.model_config.head_dtype),
        }

    def open(self, rows: int, depths: list[int]) -> None:
        """Begin a batch: allocate the states of `rows` rows at these depths."""
        width, kind = self._runner.model_config.get_hidden_size(), self._runner.model_config.dtype
        device = self._runner.device
        self._hidden = {d: torch.zeros(rows, width, dtype=kind, device=device) for d in depths}
        self._coverage = np.zeros(rows, dtype=bool)

    def gaps(self) -> list[int]:
        """Return the rows that no request has computed, because vLLM had cached their prefix."""
        return np.flatnonzero(~self._coverage).tolist()

    def read(
        self, row: np.ndarray, token: np.ndarray, depths: list[int], theta: dict[str, Any] | None
    ) -> np.ndarray:
        """Return log-probabilities of predicted tokens, in nats; only one rank's result is used.

        Returns:
            float32 [readings, targets]: one reading per depth, then T's scores if `theta` is
            given, then the faults (`Reading.faults`).
        """
        scorers = []
        if theta is not None:
            constants = Theta.from_dict(theta)
            scorers = [Scorer(constants, len(self._blocks), self._head.vocabulary)]
        reads = Reads(np.arange(len(self._coverage)), row, token, np.zeros_like(row))
        states = States(self._hidden, reads)
        reading = read(self._head, states, np.arange(len(row)), depths, scorers)
        numbers = [*(reading.log_probs[d] for d in depths), *reading.scores, reading.faults]
        return np.stack(numbers).astype(np.float32)

    def pool(self, row: np.ndarray, lengths: np.ndarray, depths: list[int]) -> np.ndarray:
        """Return the mean state of each passage, float32 [passages, depths, width]."""
        rows, counts = (torch.from_numpy(x).to(self._runner.device) for x in (row, lengths))
        means = [
            torch.segment_reduce(self._hidden[d][rows].float(), "mean", lengths=counts)
            for d in depths
        ]
        return torch.stack(means, 1).cpu().numpy()

    def _execute_step(self, scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        """Run vLLM's step, with its schedule available to the hooks."""
        self._step, self._places = scheduled, None
        try:
            return self._execute(scheduled, *args, **kwargs)
        finally:
            self._step = self._places = None

    def _return_states(self, depth: int) -> None:
        """Make the blocks return their states too, as vLLM does for draft models (EAGLE-3)."""
        if not getattr(self._model, "supports_eagle3", False):
            raise ValueError(
                f"vLLM's {type(self._model).__name__} gives no states when it is compiled: leave "
                "enforce_eager out"
            )
        model: Any = self._model
        model.set_aux_hidden_state_layers(tuple(range(depth + 1)))

        def hook(_: nn.Module, __: Any, output: tuple[Tensor, list[Tensor]]) -> Tensor:
            state, states = output
            for hidden in self._hidden:
                self._keep(hidden, states[hidden], None)
            return state

        model.register_forward_hook(hook)

    def _before(self, depth: int, block: nn.Module) -> Callable[..., None]:
        signature = inspect.signature(block.forward)

        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            arguments = signature.bind(*args, **kwargs).arguments
            self._keep(depth, arguments["hidden_states"], arguments.get("residual"))

        return hook

    def _after(self, depth: int, residual: bool) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            state, *more = output if isinstance(output, tuple) else (output,)
            self._keep(depth, state, more[0] if residual else None)

        return hook

    def _keep(self, depth: int, state: Tensor, residual: Tensor | None) -> None:
        if self._step is None:
            return
        if self._places is None:
            self._places = self._lay_out()
        places, rows = self._places
        if depth in self._hidden and len(places):
            # index_select copies, which is needed because vLLM's norms work in place.
            states = state.index_select(0, places)
            states = states if residual is None else states + residual.index_select(0, places)
            self._hidden[depth].index_copy_(0, rows, states)

    def _lay_out(self) -> tuple[Tensor, Tensor]:
        """Return the indices in a step where rows of the batch are computed, and these rows."""
        parts = [np.zeros((2, 0), dtype=np.int64), *self._row_places()]
        places, rows = np.concatenate(parts, axis=1)
        self._coverage[rows] = True
        device = self._runner.device
        return torch.from_numpy(places).to(device), torch.from_numpy(rows).to(device)

    def _row_places(self) -> Iterator[np.ndarray]:
        """Yield an array [places in the step, rows] per request with rows of the batch."""
        batch, start = self._runner.input_batch, 0
        for slot, name in enumerate(batch.req_ids):
            count = self._step.num_scheduled_tokens[name]
            first = int(batch.num_computed_tokens_cpu[slot])
            request = (self._runner.requests[name].sampling_params.extra_args or {}).get(NAME)
            if request is not None:
                positions, rows = np.array(request["positions"]), np.array(request["rows"])
                here = (positions >= first) & (positions < first + count)
                yield np.stack([positions[here] - first + start, rows[here]])
            start += count


class VllmHead:
    """The model's final norm and head: `compute_logits`, which every rank must call."""

    def __init__(self, model: nn.Module, trunk: nn.Module, config: Any) -> None:
        self._compute: Any = model.compute_logits
        self._norm = first_module(trunk, FINAL_NORMS) or nn.Identity()
        self._projected = first_module(trunk, AFTER_NORM) or nn.Identity()
        self.device = next(model.parameters()).device
        self.vocabulary = int(config.vocab_size)
        self.tile_rows = tile_rows(self.vocabulary, self.device)

    def logits(self, hidden: Tensor, *, norm: bool = True) -> Tensor:
        """Return W_U N(h) in float32; zeros on ranks that do not compute logits."""
        normed = self._norm(hidden) if norm else hidden
        logits: Tensor | None = self._compute(self._projected(normed))
        if logits is None:
            return torch.zeros(len(hidden), self.vocabulary, device=self.device)
        return logits.float()


def locate(model: nn.Module, depth: int) -> tuple[nn.Module, nn.ModuleList]:
    """Return the module with the `depth` blocks, and the list of blocks.

    Raises:
        ValueError: No list has this many blocks, or several lists have.
    """
    stacks = [
        (parent, child)
        for parent in model.modules()
        for child in parent.children()
        if isinstance(child, nn.ModuleList) and len(child) == depth
    ]
    if len(stacks) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(stacks)} lists of {depth} blocks"
            " where one is expected"
        )
    return stacks[0]


def takes_residual(block: nn.Module) -> bool:
    """Return True if a block takes and returns the residual separately from its input."""
    return "residual" in inspect.signature(block.forward).parameters
