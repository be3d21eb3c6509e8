"""The workshop: what measures and checks the engine, and is not part of it."""
