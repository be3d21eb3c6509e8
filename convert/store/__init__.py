"""Read and write converted checkpoints ("stores"): Orbax items (OCDBT) and one manifest of ours."""
