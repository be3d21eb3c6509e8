"""Benchmarks and checks of the engine: `eagle3-bench`."""
