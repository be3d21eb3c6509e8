"""The emulator of AMD's machine code against AMD's own documents and against other computations."""
