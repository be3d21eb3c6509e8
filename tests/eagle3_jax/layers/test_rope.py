"""Rotary embeddings against published frequencies and against complex multiplication."""

import jax.numpy as jnp
import numpy as np
import pytest

from eagle3_jax.config import RopeConfig, YarnConfig
from eagle3_jax.layers.rope import inverse_frequencies, rope_tables
from pallas_kernels.rotation import rotate_halves, rotate_interleaved

KIMI_FREQUENCIES = np.fromstring(
    """
    1 0.713111085 0.508527419 0.36263654 0.258600136 0.184410624 0.13150526 0.0937778586
    0.0668740305 0.043776656 0.0284279591 0.0182829556 0.0116191599 0.00727411927 0.00446584875
    0.00267020339 0.00153729673 0.000834655045 0.000408645987 0.000158374991 1.80702339e-05
    1.28860841e-05 9.1892094e-06 6.55292708e-06 4.67296494e-06 3.3323431e-06 2.3763308e-06
    1.69458784e-06 1.20842937e-06 8.6174438e-07 6.14519469e-07 4.38220646e-07
    """,
    sep=" ",
)
"""Of transformers, for Kimi-K2.5: 64 dimensions, base 50000, YaRN by 64 from 4096."""


def test_yarn_frequencies_are_those_of_the_published_model() -> None:
    rope = RopeConfig(50000.0, YarnConfig(64.0, 4096, 32.0, 1.0, 1.0, 1.0))
    np.testing.assert_allclose(inverse_frequencies(rope, 64), KIMI_FREQUENCIES, rtol=2e-7)


def test_equal_betas_make_a_step() -> None:
    """beta_fast = beta_slow = 1: pairs up to 19 are kept, from 20 on divided by the factor."""
    plain = inverse_frequencies(RopeConfig(50000.0), 64)
    scaled = inverse_frequencies(RopeConfig(50000.0, YarnConfig(64.0, 4096, 1.0, 1.0)), 64)
    np.testing.assert_allclose(scaled[:20], plain[:20])
    np.testing.assert_allclose(scaled[20:], plain[20:] / 64)


def test_without_yarn_frequencies_are_powers_of_the_base() -> None:
    found = inverse_frequencies(RopeConfig(100.0), 4)
    np.testing.assert_array_equal(found, np.array([1.0, 0.1], np.float32))


@pytest.mark.parametrize("rotate", [rotate_interleaved, rotate_halves])
def test_rotation_is_multiplication_by_a_unit_complex_number(rotate) -> None:
    rope = RopeConfig(100.0)
    x = np.random.default_rng(0).normal(size=(1, 5, 2, 8)).astype(np.float32)
    positions = np.array([[0, 1, 7, 30, 4000]], np.int32)
    turned = np.asarray(rotate(jnp.asarray(x), *rope_tables(rope, 8, jnp.asarray(positions))))

    def as_complex(values: np.ndarray) -> np.ndarray:
        if rotate is rotate_halves:
            return values[..., :4] + 1j * values[..., 4:]
        return values[..., 0::2] + 1j * values[..., 1::2]

    angles = positions[..., None, None] * inverse_frequencies(rope, 8)
    np.testing.assert_allclose(as_complex(turned), as_complex(x) * np.exp(1j * angles), atol=1e-3)
