"""vLLM: the model where it is served, in a process and an environment of vLLM's own.

`side` and `worker` run there and import neither transformers nor anything that lastword pins:
token ids go in, log-probabilities come out. `process` starts the side and talks to it; `remote`
stands where a model in this process would, `tracer` decides, `source` finds the checkpoint.
"""
