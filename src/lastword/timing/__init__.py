"""How fast a model answers with and without correction, beside what others pay, and the floor."""
