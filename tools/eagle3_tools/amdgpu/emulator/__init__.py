"""The emulated GPU: instructions, registers, memory, and the waves that run."""
