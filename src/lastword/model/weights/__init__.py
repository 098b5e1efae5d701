"""Tensors on disk or on a hub, and I(M) from five of them."""
