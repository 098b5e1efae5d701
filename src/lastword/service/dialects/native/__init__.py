"""The service's native form: decisions with every reason, batches, labels."""
