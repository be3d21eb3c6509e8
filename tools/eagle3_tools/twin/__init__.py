"""JAX's unmodified ROCm client on emulated MI355X: fakes of the ROCm libraries, and an emulator."""
