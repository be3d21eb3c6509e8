"""The flags of commands, read into values and checked; nothing here imports JAX."""
