"""lastword where people already are: lm-evaluation-harness, scikit-learn, agents by MCP."""
