"""Four-bit weights made of their bits: every code with every scale, against the contract."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import QuantFormat, QuantizedArray, gpu
from pallas_kernels.grouped_matmul.unpack import (
    MOST_INPUTS,
    as_words,
    int4_group,
    int4_times_16,
    mxfp4,
    nvfp4,
)
from pallas_kernels.quantized import dequantize

CODES = np.array([code << 4 | (15 - code) for code in range(16)], np.uint8)
"""A group of 32 values in which every code is, at even places and at odd ones."""


@pytest.mark.parametrize("arch", ["gfx942", "sm_90"])
def test_mxfp4_is_exact_for_every_code_and_scale(arch: str) -> None:
    scale = jnp.arange(256, dtype=jnp.uint8)[:, None]
    values = jnp.broadcast_to(jnp.asarray(CODES), (256, 16))
    with gpu.assume(arch):
        got = np.asarray(fresh(mxfp4)(as_words(values), scale).astype(jnp.float32))
    np.testing.assert_array_equal(got, expected("mxfp4", values, scale))


def test_nvfp4_is_the_contracts_product_for_every_code_and_e4m3_scale() -> None:
    e4m3 = jnp.arange(128, dtype=jnp.uint8).at[127].set(0)  # byte 127 is NaN
    scale = jax.lax.bitcast_convert_type(e4m3, jnp.float8_e4m3fn).astype(jnp.float32) * 3e-5
    scale = jnp.stack([scale, scale[::-1]], axis=1)
    values = jnp.broadcast_to(jnp.asarray(CODES), (128, 16))
    got = np.asarray(jax.jit(nvfp4)(as_words(values), scale))
    np.testing.assert_array_equal(got, expected("nvfp4", values, scale))


@pytest.mark.parametrize("arch", ["gfx950", "gfx942", "sm_90"])
def test_int4_is_rounded_once_for_every_code_and_scale(arch: str) -> None:
    """From 2^-122 to 2^108."""
    bits = np.arange((127 - 122) << 7, (127 + 108) << 7, dtype=np.uint16)
    scale = jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.bfloat16)[:, None]
    values = jnp.broadcast_to(jnp.asarray(CODES), (len(bits), 16))
    with gpu.assume(arch):
        got = np.asarray(fresh(int4_group)(as_words(values), scale).astype(jnp.float32))
    np.testing.assert_array_equal(got, expected("int4_group", values, scale))


def test_int4_of_a_channel_is_16_times_its_value_for_every_byte_at_every_place() -> None:
    values = jnp.asarray([np.roll(np.arange(256, dtype=np.uint8), place) for place in range(4)])
    got = np.asarray(jax.jit(int4_times_16)(as_words(values)))
    np.testing.assert_array_equal(got, 16 * expected("int4_channel", values, jnp.ones(4)))


def test_the_largest_sum_of_int4_of_a_channel_fits_into_32_bits() -> None:
    int8 = np.iinfo(np.int8)
    assert MOST_INPUTS * int8.min * int8.min <= np.iinfo(np.int32).max + 1
    assert MOST_INPUTS * -int8.min * int8.max <= np.iinfo(np.int32).max


def fresh(unpack: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Return a program that is traced anew: JAX's caches do not know the assumed GPU."""
    return jax.jit(lambda *arrays: unpack(*arrays))


def expected(weights: str, values: jax.Array, scale: jax.Array) -> np.ndarray:
    return np.asarray(dequantize(QuantizedArray(values, scale, QuantFormat(weights))))
