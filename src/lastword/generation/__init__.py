"""Text that the model writes itself: asked for answers, which are corrected among."""
