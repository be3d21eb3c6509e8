"""Independent references ("witnesses") for the emulated opcodes, mainly AMD's own pseudocode."""
