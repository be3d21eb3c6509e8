"""Compare answers, and decide whether a rounding tie excuses a difference."""
