"""AITER's Triton kernels, compiled from a checkout, beside ours in the kernel model."""
