"""What a program knows of its requests' options, so that a batch pays only for what it uses."""

from enum import Enum


class Variant(Enum):
    """LEAN: the options that every row has (eagle3_jax.sampling.rows).

    FULL: logit controls (eagle3_jax.speculative.logit_controls) and logprobs too.
    ARGMAX: tokens are chosen in the head's kernel and no logits are written: of the options only
    temperature, min-p, biases and few stop ids before min_len count
    (eagle3_jax.speculative.head_choice).
    """

    LEAN = "lean"
    FULL = "full"
    ARGMAX = "argmax"
