"""The service: HTTP around one decider, and the pages on top of it."""
