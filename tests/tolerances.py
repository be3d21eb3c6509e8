"""Allowed differences between correct implementations; they depend on the number format only."""

FLOAT32_ATOL = 1e-5
"""Absolute, for logits and hidden states; independent float32 implementations differ by 4e-6."""

FED_BACK_ACTIVATIONS_RMS = 5e-2
"""RMS over a chain of steps with quantised activations. The last bit of a state can decide how a
value at a rounding boundary is rounded, which moves it by a step of the format.
"""

CLEAR_MARGIN = 1e-3
"""Least margin of the two best draft logits for which a transcript must agree in every token."""

ACTIVATION_SCHEMES_RMS = 0.1
"""RMS on logits of two sides whose activations are quantised differently, or on one side only."""
