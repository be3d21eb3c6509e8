"""Flags of commands, parsed into checked values; nothing here imports JAX."""
