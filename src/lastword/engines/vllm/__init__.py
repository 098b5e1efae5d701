"""vLLM: a model that vLLM runs, in a separate process and environment.

`side` and `worker` run there and import neither transformers nor anything that lastword pins:
token ids go in, log-probabilities and mean states come out; `compiled` has vLLM itself. `process`
starts the side and talks to it, `backend` is used as a model in this process is, and `checkpoint`
finds what is loaded.
"""
