"""Laboratory: benchmarks, their evaluation, reports, timing and the demo."""
