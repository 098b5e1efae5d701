"""lastword where people already are: lm-evaluation-harness and transformers' pipelines."""
