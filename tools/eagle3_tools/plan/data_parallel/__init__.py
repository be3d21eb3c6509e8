"""Data parallel attention with expert parallelism, beside tensor and decode context parallelism."""
