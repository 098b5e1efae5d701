"""Tables, figures and the page of a run: they read records, never a model."""
