"""The service: HTTP around one tracer, and the explorer page on top of it."""
