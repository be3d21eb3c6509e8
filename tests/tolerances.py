"""How far correct implementations may lie apart: a property of the number format, not a test."""

FLOAT32_ATOL = 1e-5
"""Absolute, on logits and hidden states; independent float32 implementations differ by 4e-6."""

CLEAR_MARGIN = 1e-3
"""Least distance of the two best draft logits for which a transcript must agree token for token."""
