"""Tensors on disk or on the hub, and I(M) from five of them, without loading the model."""
