"""Converted checkpoints: Orbax items (OCDBT) and one manifest of ours."""
