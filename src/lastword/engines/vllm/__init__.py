"""vLLM: runs a model with vLLM, in a separate process and environment (the side).

`side` and `worker` run in vLLM's environment and import neither transformers nor other packages
that lastword pins. They receive token ids and return log-probabilities and mean states. `compiled`
imports vLLM. In this process, `process` starts and calls the side, `backend` has the interface of a
local model, and `checkpoint` finds the files to load.
"""
