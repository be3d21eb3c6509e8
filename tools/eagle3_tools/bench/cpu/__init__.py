"""The parts of `eagle3-bench cpu`."""
