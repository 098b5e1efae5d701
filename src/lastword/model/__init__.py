"""A transformers model as a source of states and logits: found, loaded, checked and run."""
