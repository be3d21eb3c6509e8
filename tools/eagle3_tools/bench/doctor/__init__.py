"""Checks of `eagle3-bench doctor` on one machine, and their findings."""
