"""A transformers model as a source of states and logits: loading, check and forward passes."""
