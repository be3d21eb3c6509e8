"""Compilation for AMD GPUs without one, and analysis of code objects and machine code."""
