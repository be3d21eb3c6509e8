"""AMD's own instruction pseudocode, read and evaluated: the second witness of what opcodes do."""
