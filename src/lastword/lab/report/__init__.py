"""Tables, figures and the page of a run, made from records without a model."""
