"""Jobs for InferenceX: the matrix, its check, and the launchers under benchmarks/."""
