"""NVIDIA's GPUs: their compiler without one, and what its assembler says."""
