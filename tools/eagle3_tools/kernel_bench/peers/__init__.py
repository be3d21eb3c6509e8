"""Other libraries' implementations of a case."""
