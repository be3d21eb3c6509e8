"""Masks of a bit a token against NumPy's own bits."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.sampling.token_mask import mask_logits, open_masks


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 163_840])
def test_a_token_keeps_its_logit_exactly_where_its_bit_is_set(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    masks = rng.integers(0, 2**32, open_masks(vocab, 2, 3).shape, np.uint32)
    logits = rng.normal(size=(2, 3, vocab)).astype(np.float32)
    bits = np.unpackbits(masks.view(np.uint8), axis=-1, bitorder="little")[..., :vocab]
    expected = np.where(bits == 1, logits, -np.inf)
    assert (np.asarray(mask_logits(jnp.asarray(logits), jnp.asarray(masks))) == expected).all()
    some = np.arange(0, vocab, 3)
    reduced = mask_logits(jnp.asarray(logits[..., some]), jnp.asarray(masks), jnp.asarray(some))
    assert (np.asarray(reduced) == expected[..., some]).all()
