"""The process in vLLM's environment: token ids in, numbers out, over one pipe.

`python -m lastword.engines.vllm.side FD PARENT FOLDER...` is started by `process`. A call is a name
with arguments, and is answered by a value and what was raised. Standard output is left to vLLM.
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

_LOOK_SECONDS = 0.5  # between two looks at whether the parent lives
# On the CPU: keys and values, where vLLM would take most of the machine's memory, in the smallest
# blocks that it has there (else 128 tokens), for what candidates share is computed once by blocks.
_ON_CPU = {"kv_cache_memory_bytes": 2**30, "block_size": 32}
# Of a compiled model: hooks run between graphs, not inside one of a whole step; what vLLM keeps of
# a compiled graph is found by a digest of its configuration, which the states are no part of.
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
            # The CPU multiplies float16 slowly and rounds more than it needs to.
            arguments["dtype"] = {"float16": "float32"}.get(arguments["dtype"], arguments["dtype"])
        if arguments["dtype"] == "float32":
            arguments.pop("hf_overrides", None)  # its head is float32 already
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
        """Return the facts that only the loaded model shows."""
        import vllm

        return {**self._llm.collective_rpc("lastword_watch")[0], "version": vllm.__version__}

    def _ask(self, name: str, *arguments: Any) -> list[Any]:
        answers: list[Any] = self._llm.collective_rpc("lastword_call", args=(name, *arguments))
        return answers

    def compute(
        self, requests: list[dict[str, Any]], rows: int, depths: list[int], salt: str | None = None
    ) -> int:
        """Run requests, and keep the states of their rows; return how many were sent again.

        What a prefix of earlier calls may have hidden is asked for once more, past vLLM's cache.

        Args:
            requests: Each with its token `ids`, and `positions` that are `rows` of the batch.
            rows: Rows of the batch.
            depths: Depths whose states are stored.
            salt: What requests must have in common to share prefixes; of this call alone if not
                given.

        Raises:
            RuntimeError: Rows that even then nobody computed.
        """
        self._salt += 1
        self._ask("open", rows, depths)
        self._run(requests, salt or f"{NAME}-{self._salt}")
        gaps = self._gaps()
        again = [r for r in requests if gaps & {*r["rows"]}]
        self._run(again, None)
        if rest := self._gaps():
            raise RuntimeError(f"vLLM computed {len(rest)} of {rows} rows at no time")
        return len(again)

    def _gaps(self) -> set[int]:
        return {row for rows in self._ask("gaps") for row in rows}

    def _run(self, requests: list[dict[str, Any]], salt: str | None) -> None:
        """Run prompts whose one sampled token nobody reads; without a salt, past the cache."""
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
        """Read as `Watch.read` of the first rank does."""
        numbers: np.ndarray = self._ask("read", *arguments)[0]
        return numbers

    def pool(self, *arguments: Any) -> np.ndarray:
        """Pool as `Watch.pool` of the first rank does."""
        means: np.ndarray = self._ask("pool", *arguments)[0]
        return means

    def log_probs(self, sequences: list[list[int]]) -> list[list[float]]:
        """Return vLLM's log-probabilities of each sequence's tokens, from the second on."""
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
    """Answer calls until the parent is gone."""
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
        except Exception as error:  # whatever vLLM raises is raised on the other side
            pipe.send((None, f"{type(error).__name__}: {error}"))


def _die_with(parent: int, folders: tuple[str, ...]) -> None:
    """End this process and those of vLLM's workers once the parent has ended for any reason.

    A parent that was killed has not removed its temporary folders.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
