"""Whether two answers are equal, and which rounding excuses a difference."""
