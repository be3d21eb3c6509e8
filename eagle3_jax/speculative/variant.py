"""Program variants by supported request options, so that a batch pays only for what it uses."""

from enum import Enum


class Variant(Enum):
    """Kind of a program, by the request options that it supports.

    LEAN: the options that every row has (eagle3_jax.sampling.rows).
    FULL: also logit controls (eagle3_jax.speculative.logit_controls) and logprobs.
    ARGMAX: tokens are chosen in the head's kernel without writing logits. It supports temperature,
        min-p, biases and a few stop ids before min_len (eagle3_jax.speculative.head_choice).
    """

    LEAN = "lean"
    FULL = "full"
    ARGMAX = "argmax"
