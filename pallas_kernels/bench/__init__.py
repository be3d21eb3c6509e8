"""Times the kernels on the GPU that is there, beside its ceilings and what others make of it."""
