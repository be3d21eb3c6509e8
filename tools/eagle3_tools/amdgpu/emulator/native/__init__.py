"""Kernels as C: the operations' own definitions, traced once for an instruction."""
