"""Token masks of grammars, one bit per token: token i is bit i % 32 of word i // 32."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from eagle3_jax.collectives import Axis
from eagle3_jax.vocabulary import own_columns

WORD_BITS = 32
ALL_ALLOWED = np.uint32(2**WORD_BITS - 1)


def open_masks(vocab_size: int, *rows: int) -> np.ndarray:
    """Make host masks uint32 [*rows, words] that allow everything."""
    return np.full((*rows, -(-vocab_size // WORD_BITS)), ALL_ALLOWED)


def allow_only(mask: np.ndarray, token: int) -> None:
    """Bar all tokens but one in a mask [words]."""
    mask[:] = 0
    mask[token // WORD_BITS] = 1 << token % WORD_BITS


def mask_logits(
    logits: Float[Array, "batch rows vocab"],
    masks: UInt32[Array, "batch rows words"] | None,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
) -> Float[Array, "batch rows vocab"]:
    """Set logits to -inf where the mask bit is 0; a row of ones keeps its logits bit for bit.

    Without masks all logits are kept. `token_ids` is the target id of each column, for a reduced
    draft vocabulary. `axis` splits the logits; masks are whole.
    """
    if masks is None:
        return logits
    allowed = own_columns(unpack_mask(masks), logits.shape[-1], token_ids, axis)
    return jnp.where(allowed, logits, -jnp.inf)


def unpack_mask(masks: UInt32[Array, "*rows words"]) -> Bool[Array, "*rows bits"]:
    """Unpack one bit per token, including the padding of the last word."""
    bits = masks[..., None] >> jnp.arange(WORD_BITS, dtype=jnp.uint32) & 1
    return bits.reshape(*masks.shape[:-1], -1) == 1
