"""The small Kimi pair: its engine's programs for AMD GPUs, and the CPU engine as reference."""
