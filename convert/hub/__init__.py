"""Checkpoints named by directory or by their id on the Hugging Face hub."""
