"""Integrations: lm-evaluation-harness, scikit-learn, MCP, decision models of transformers."""
