"""Times the kernels on the GPU that is there, against its ceilings and other libraries."""
