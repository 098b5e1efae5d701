"""Tokens of transformers' own DoLa on an embedded model, for `transformers_dola.json`.

Not a test: it runs beside transformers 4.53.3, the last that had the code which is now
transformers-community/dola. From the repository's root:

    python -m venv dola && dola/bin/pip install torch==2.13.0 transformers==4.53.3
    dola/bin/python tests/generation/transformers_dola.py > tests/generation/transformers_dola.json
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, __version__

FOLDER = Path(__file__).resolve().parents[2] / "src/lastword/model/embedded/organism"
PROMPTS = [f"Question: Which goods come from {town}? Answer:" for town in ("Baevwick", "Barholt")]
LAYERS: list[Any] = ["high", "low", [1, 3]]
PENALTIES = [1.0, 1.5]


def model() -> Any:
    """The organism, whose config is of a later transformers."""
    config = json.loads((FOLDER / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    for name in ("transformers_version", "dtype", "architectures"):
        del config[name]
    known: Any = LlamaConfig  # whose arguments were others then
    made = LlamaForCausalLM(known(**config, rope_theta=theta)).eval()
    made.load_state_dict({k: v.float() for k, v in load_file(FOLDER / "model.safetensors").items()})
    return made


def main() -> None:
    """Print every case with the tokens that follow the prompt."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / "tokenizer.json"))
    decoded, cases = model(), []
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt)["input_ids"]])
        for layers in LAYERS:
            for penalty in PENALTIES:
                output = decoded.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    dola_layers=layers,
                    repetition_penalty=penalty,
                    max_new_tokens=8,
                    do_sample=False,
                    eos_token_id=None,
                    pad_token_id=0,
                )
                given = {"prompt": prompt, "dola_layers": layers, "repetition_penalty": penalty}
                cases.append({**given, "tokens": output[0, ids.shape[1] :].tolist()})
    print(json.dumps({"transformers": __version__, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
