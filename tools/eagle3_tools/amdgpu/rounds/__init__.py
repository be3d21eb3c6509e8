"""The small Kimi pair: its engine's programs for AMD GPUs, and what its CPU engine says."""
