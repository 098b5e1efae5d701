"""lm-evaluation-harness's own `vllm` model on token ids: log-probabilities, and how long they took.

    VLLM_PYTHON experiments/harness_on_vllm.py ASKED ANSWER

`on_vllm.py` starts it in vLLM's environment, which needs lm-eval for it and nothing of lastword.
The two are JSON files: ASKED has the checkpoint's folder and pairs of prompt and answer, ANSWER
becomes their log-probabilities in nats and the seconds without loading.
"""

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

_version = metadata.version


def _version_of(distribution_name: str) -> str:
    """The harness asks for the version of `vllm`; the CPU's build is another distribution."""
    try:
        return _version(distribution_name)
    except metadata.PackageNotFoundError:
        return _version(f"{distribution_name}-cpu") + "+cpu"  # as vLLM itself takes it


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What the harness's model says, after one request to warm it up."""
    metadata.version = _version_of
    from lm_eval.models.vllm_causallms import VLLM

    model = VLLM(asked["folder"], **asked["arguments"])
    pairs = [(("", ""), prompt, answer) for prompt, answer in asked["pairs"]]
    model._loglikelihood_tokens(pairs[:1], disable_tqdm=True)
    start = time.perf_counter()
    told = model._loglikelihood_tokens(pairs, disable_tqdm=True)
    return {"seconds": time.perf_counter() - start, "log_probs": [known for known, _ in told]}


if __name__ == "__main__":
    given, out = map(Path, sys.argv[1:])
    out.write_text(json.dumps(answer(json.loads(given.read_text()))), encoding="utf-8")
