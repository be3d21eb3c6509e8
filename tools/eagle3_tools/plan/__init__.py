"""Capacity planning: memory and speed of a pair of models on GPUs."""
