"""vLLM: the model where it is served, in a process and an environment of vLLM's own.

`side` and `worker` run there and import neither transformers nor anything that lastword pins:
token ids go in, log-probabilities and mean states come out; `compiled` has vLLM itself. `process`
starts the side and talks to it, `backend` is used as a model in this process is, and `checkpoint`
finds what is loaded.
"""
