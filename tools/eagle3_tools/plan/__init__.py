"""Capacity planning: memory and speed of a target and its draft on GPUs."""
