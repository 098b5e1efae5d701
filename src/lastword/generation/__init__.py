"""Text that the model writes itself: asked for answers, and decoded by the rule."""
