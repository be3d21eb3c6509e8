"""Compilation for NVIDIA GPUs without one, and analysis of the assembler's report."""
