"""The service's own form: decisions with every reason, batches, questions, labels."""
