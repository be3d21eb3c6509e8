"""Jobs for InferenceX: the matrix, its validation, and the launchers in benchmarks/."""
