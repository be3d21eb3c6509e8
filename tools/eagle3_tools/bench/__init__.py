"""Measurements of the engine: against another library, against its own floor, against itself."""
