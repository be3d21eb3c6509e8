"""Which tokens a grammar allows, one bit a token: token i is bit i % 32 of word i // 32."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

WORD_BITS = 32


def mask_words(vocab_size: int) -> int:
    """Words that hold a bit for each token."""
    return -(-vocab_size // WORD_BITS)


def open_masks(vocab_size: int, *rows: int) -> np.ndarray:
    """Masks uint32 [*rows, words] on the host that allow everything."""
    return np.full((*rows, mask_words(vocab_size)), 2**WORD_BITS - 1, np.uint32)


def mask_logits(
    logits: Float[Array, "batch rows vocab"], masks: UInt32[Array, "batch rows words"]
) -> Float[Array, "batch rows vocab"]:
    """-inf where the bit is not set; a row of ones keeps its logits bit for bit."""
    return jnp.where(unpack_mask(masks, logits.shape[-1]), logits, -jnp.inf)


def unpack_mask(masks: UInt32[Array, "*rows words"], vocab_size: int) -> Bool[Array, "*rows vocab"]:
    """The bits of the first vocab_size tokens."""
    bits = masks[..., None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32) & 1
    return bits.reshape(*masks.shape[:-1], -1)[..., :vocab_size] == 1
