"""The process in vLLM's environment: receives token ids and returns numbers, over one pipe.

`process` starts `python -m lastword.engines.vllm.side FD PARENT FOLDER...`. A call is a name with
arguments; its answer is a value and an error. Standard output belongs to vLLM.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lastword.engines.vllm.worker import NAME

_LOOK_SECONDS = 0.5  # interval for checking that the parent is alive
# On the CPU, vLLM would reserve most of the machine's memory for keys and values, in blocks of 128
# tokens. Only whole blocks of a prefix are shared by candidates, so small blocks save work.
_ON_CPU = {"kv_cache_memory_bytes": 2**30, "block_size": 32}
# For compiled models: hooks run between graphs, so there must not be one graph per step. vLLM finds
# cached graphs by their configuration; `additional_config` keeps those without states apart.
_COMPILED = {
    "worker_cls": "lastword.engines.vllm.compiled.CompiledWorker",
    "compilation_config": {"cudagraph_mode": "PIECEWISE"},
    "additional_config": {NAME: "every depth"},
}


class Side:
    """vLLM with one model.

    Args:
        arguments: Arguments of `vllm.LLM`.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        from vllm import LLM
        from vllm.platforms import current_platform

        if current_platform.is_cpu():
            arguments = {**_ON_CPU, **arguments}
            # CPUs multiply float16 slowly, and with needless rounding.
            arguments["dtype"] = {"float16": "float32"}.get(arguments["dtype"], arguments["dtype"])
        if arguments["dtype"] == "float32":
            arguments.pop("hf_overrides", None)  # the head is float32 anyway
        eager = arguments.setdefault("enforce_eager", True)
        self._llm = LLM(
            **({} if eager else _COMPILED),
            **arguments,
            async_scheduling=False,
            skip_tokenizer_init=True,
            disable_log_stats=True,
            worker_extension_cls="lastword.engines.vllm.worker.Extension",
        )
        self._salt = 0

    def facts(self) -> dict[str, Any]:
        """Return facts that are known only after loading the model."""
        import vllm

        return {**self._llm.collective_rpc("lastword_watch")[0], "version": vllm.__version__}

    def _ask(self, name: str, *arguments: Any) -> list[Any]:
        answers: list[Any] = self._llm.collective_rpc("lastword_call", args=(name, *arguments))
        return answers

    def compute(
        self, requests: list[dict[str, Any]], rows: int, depths: list[int], salt: str | None = None
    ) -> int:
        """Run requests, store the states of their rows, and return how many were sent again.

        If vLLM has a prefix in its cache, it does not compute its rows, and the hooks do not see
        their states. Such requests are sent again without the cache.

        Args:
            requests: Requests with token `ids`, and the `positions` of `rows` of the batch.
            rows: Number of rows of the batch.
            depths: Depths whose states are stored.
            salt: Only requests with equal salts share prefixes; by default those of this call.

        Raises:
            RuntimeError: vLLM did not compute some rows even then.
        """
        self._salt += 1
        self._ask("open", rows, depths)
        self._run(requests, salt or f"{NAME}-{self._salt}")
        gaps = self._gaps()
        again = [r for r in requests if gaps & {*r["rows"]}]
        self._run(again, None)
        if rest := self._gaps():
            raise RuntimeError(f"vLLM did not compute {len(rest)} of {rows} rows")
        return len(again)

    def _gaps(self) -> set[int]:
        return {row for rows in self._ask("gaps") for row in rows}

    def _run(self, requests: list[dict[str, Any]], salt: str | None) -> None:
        """Run prompts; the one sampled token is ignored. Without a salt the cache is not used."""
        if not requests:
            return
        from vllm import SamplingParams

        shared = {} if salt is None else {"cache_salt": salt}
        self._llm.generate(
            [{"prompt_token_ids": r["ids"], **shared} for r in requests],
            [
                SamplingParams(
                    max_tokens=1,
                    temperature=0.0,
                    detokenize=False,
                    skip_reading_prefix_cache=salt is None,
                    extra_args={NAME: {"positions": r["positions"], "rows": r["rows"]}},
                )
                for r in requests
            ],
            use_tqdm=False,
        )

    def read(self, *arguments: Any) -> np.ndarray:
        """Return the result of `Watch.read` from the first rank."""
        numbers: np.ndarray = self._ask("read", *arguments)[0]
        return numbers

    def pool(self, *arguments: Any) -> np.ndarray:
        """Return the result of `Watch.pool` from the first rank."""
        means: np.ndarray = self._ask("pool", *arguments)[0]
        return means

    def log_probs(self, sequences: list[list[int]]) -> list[list[float]]:
        """Return vLLM's log-probabilities in nats of each sequence's tokens, from the second on."""
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=1, temperature=0.0, detokenize=False, prompt_logprobs=0
        )
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for ids in sequences], sampling, use_tqdm=False
        )
        return [
            [entry[t].logprob for t, entry in zip(ids, o.prompt_logprobs, strict=True) if entry]
            for ids, o in zip(sequences, outputs, strict=True)
        ]


def main(descriptor: str, parent: str, *folders: str) -> None:
    """Answer calls until the parent ends."""
    watch = threading.Thread(target=_die_with, args=(int(parent), folders), daemon=True)
    watch.start()
    with contextlib.suppress(EOFError, ConnectionError):
        _answer(Connection(int(descriptor)))
    watch.join()


def _answer(pipe: Connection) -> None:
    side: Side | None = None
    while True:
        name, arguments = pipe.recv()
        try:
            if name == "load":
                side = Side(*arguments)
                name, arguments = "facts", ()
            pipe.send((getattr(side, name)(*arguments), None))
        except Exception as error:  # any error is sent to the parent
            pipe.send((None, f"{type(error).__name__}: {error}"))


def _die_with(parent: int, folders: tuple[str, ...]) -> None:
    """End this process and vLLM's workers when the parent has ended for any reason.

    Its temporary folders are removed here, because a parent that is killed cannot do it.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
