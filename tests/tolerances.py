"""How far correct implementations may lie apart: a property of the number format, not a test."""

FLOAT32_ATOL = 1e-5
"""Absolute, on logits and hidden states; independent float32 implementations differ by 4e-6."""

FED_BACK_ACTIVATIONS_RMS = 5e-2
"""Root mean square on a chain of steps whose activations are quantised: the last bit of a state can
decide to which side a value on a rounding boundary falls, which moves it by a step of the format,
and the next step starts from there."""

CLEAR_MARGIN = 1e-3
"""Least distance of the two best draft logits for which a transcript must agree token for token."""

ACTIVATION_SCHEMES_RMS = 0.1
"""Root mean square on logits whose sides do not quantise activations by the same scheme: one may
leave them as they are."""
