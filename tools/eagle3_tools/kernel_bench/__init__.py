"""Benchmark of the kernels on a GPU, against the GPU's ceilings and other libraries."""
