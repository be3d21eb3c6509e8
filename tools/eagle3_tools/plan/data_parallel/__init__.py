"""Data parallel attention with expert parallelism, compared with tensor and context parallelism."""
