"""Quantised matmuls against float64, and activations against the vectors of the tools' own code."""

import json
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from sweeps import sweep

from pallas_kernels import QuantFormat, QuantizedArray, dequantize, grouped_mlp, matmul
from pallas_kernels.quantized.activations import fp8_per_token, int8_per_token, mxfp4_round_trip

VECTORS = json.loads(
    (Path(__file__).parents[1] / "oracles/published/test_vectors.json").read_text(encoding="utf-8")
)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
SCHEMES = [
    QuantFormat("fp8_channel"),
    QuantFormat("fp8_channel", "fp8_token"),
    QuantFormat("fp8_block"),
    QuantFormat("fp8_block", "fp8_group"),
    QuantFormat("int4_channel"),
    QuantFormat("int4_channel", "int8_token"),
    QuantFormat("int4_channel", "fp8_token"),
    QuantFormat("int4_group"),
    QuantFormat("mxfp4"),
    QuantFormat("mxfp4", "mxfp4"),
    QuantFormat("nvfp4"),
]
each_scheme = pytest.mark.parametrize(
    "scheme", SCHEMES, ids=lambda s: f"{s.weights}-{s.activations}"
)


def random_array(
    scheme: QuantFormat, outputs: int, inputs: int, stack: tuple[int, ...] = ()
) -> tuple[QuantizedArray, np.ndarray]:
    """A random matrix in this format, and what it means in float64 [*stack, out, in]."""
    rng = np.random.default_rng(outputs + inputs)
    scales = (*stack, *scheme.stored.scale_shape(outputs, inputs))
    scale = rng.uniform(0.01, 0.02, scales).astype(np.float32)
    if scheme.weights.startswith("fp8"):
        values = rng.normal(size=(*stack, outputs, inputs)).astype(ml_dtypes.float8_e4m3fn)
        exact = values.astype(np.float64)
    else:
        values = rng.integers(0, 256, (*stack, outputs, inputs // 2), np.uint8)
        nibbles = np.stack([values & 15, values >> 4], -1).reshape(*stack, outputs, inputs)
        signed = np.where(nibbles > 7, nibbles - 16.0, nibbles)
        exact = np.where(nibbles > 7, -1, 1) * E2M1[nibbles & 7]
        exact = signed if scheme.weights.startswith("int4") else exact
    if scheme.weights == "mxfp4":
        scale = rng.integers(118, 122, scales).astype(np.uint8)
    if scheme.weights == "int4_group":
        scale = scale.astype(ml_dtypes.bfloat16)
    exact = exact * widened(scheme, scale, outputs, inputs)
    if scheme.weights == "int4_group":
        exact = exact.astype(ml_dtypes.bfloat16).astype(np.float64)
    return QuantizedArray(jnp.asarray(values), jnp.asarray(scale), scheme), exact


def widened(scheme: QuantFormat, scale: np.ndarray, outputs: int, inputs: int) -> np.ndarray:
    wide = 2.0 ** (scale.astype(np.float64) - 127) if scale.dtype == np.uint8 else scale
    wide = wide.astype(np.float64)
    if scheme.weights == "fp8_block":
        return wide.repeat(128, -2).repeat(128, -1)[..., :outputs, :inputs]
    if scheme.weights.endswith("channel"):
        return wide[..., None]
    return wide.repeat(16 if scheme.weights == "nvfp4" else 32, -1)


def quantized_rows(scheme: QuantFormat, x: np.ndarray) -> np.ndarray:
    """Quantise activations by the scheme in float64, with ml_dtypes' casts and plain NumPy."""
    if scheme.activations == "none":
        return x.astype(np.float64)
    whole: int = x.shape[-1]
    run = {"fp8_group": 128, "mxfp4": 32}.get(scheme.activations, whole)
    padded = np.pad(x, ((0, 0), (0, -x.shape[-1] % run)))
    groups = padded.reshape(len(x), -1, run).astype(np.float64)
    largest = np.abs(groups).max(-1, keepdims=True)
    if scheme.activations == "int8_token":
        scale = (largest.astype(np.float32) * np.float32(1 / 127)).astype(np.float64)
        rounded = np.round(groups / scale)
    elif scheme.activations == "mxfp4":
        one_bit = largest.astype(np.float32).view(np.uint32) + 0x200000 & 0xFF800000
        scale = 2.0 ** (np.floor(np.log2(one_bit.astype(np.uint32).view(np.float32))) - 2)
        rounded = (groups / scale).clip(-6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64)
    else:
        scale = (largest.astype(np.float32) / np.float32(448)).astype(np.float64)
        rounded = (groups / scale).clip(-448, 448).astype(np.float32)
        rounded = rounded.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    return (rounded * scale).reshape(len(x), -1)[:, : x.shape[-1]]


@each_scheme
def test_dequantised_weights_are_exact(scheme: QuantFormat) -> None:
    array, exact = random_array(scheme, 160, 192)
    np.testing.assert_array_equal(np.asarray(dequantize(array)), exact.astype(np.float32))
    assert array.shape == (192, 160)


@each_scheme
def test_matmul_is_float64s(scheme: QuantFormat) -> None:
    array, exact = random_array(scheme, 160, 192)
    x = np.random.default_rng(1).normal(size=(5, 192)).astype(np.float32)
    expected = quantized_rows(scheme, x) @ exact.T
    np.testing.assert_allclose(
        np.asarray(matmul(jnp.asarray(x), array)), expected, rtol=0, atol=2e-5
    )


@each_scheme
def test_a_row_does_not_see_its_neighbours(scheme: QuantFormat) -> None:
    array, _ = random_array(scheme, 64, 128)
    x = np.random.default_rng(1).normal(size=(4, 128)).astype(np.float32)
    louder = x.copy()
    louder[1:] *= 1e3
    one, other = (np.asarray(jax.jit(matmul)(rows, array)) for rows in (x, louder))
    np.testing.assert_array_equal(one[0], other[0])


@jax.jit
def single_expert(
    x: jax.Array, gate: QuantizedArray, up: QuantizedArray, down: QuantizedArray, expert: jax.Array
) -> jax.Array:
    inner = jax.nn.silu(matmul(x, gate[expert])) * matmul(x, up[expert])
    return matmul(inner, down[expert])


@pytest.mark.parametrize(
    ("scheme", "implementation"),
    sweep(
        product(SCHEMES, ["xla", "reference"]),
        [
            (QuantFormat("fp8_block", "fp8_group"), "xla"),
            (QuantFormat("int4_channel", "int8_token"), "xla"),
            (QuantFormat("mxfp4"), "xla"),
        ],
    ),
)
def test_quantised_experts_are_those_of_the_single_matrices(
    scheme: QuantFormat, implementation: str
) -> None:
    (gate, _), (up, _) = (random_array(scheme, 64, 128, stack=(4,)) for _ in range(2))
    down, _ = random_array(scheme, 128, 64, stack=(4,))
    rng = np.random.default_rng(2)
    x = (rng.normal(size=(6, 128)) / 4).astype(np.float32)
    ids = np.stack([rng.permutation(4)[:2] for _ in range(6)]).astype(np.int32)
    weights = rng.random((6, 2)).astype(np.float32)
    expected = np.zeros_like(x)
    for token, choice in np.ndindex(ids.shape):
        one = single_expert(x[token, None], gate, up, down, ids[token, choice])
        expected[token] += weights[token, choice] * np.asarray(one)[0]
    experts = jax.jit(partial(grouped_mlp, implementation=implementation))
    got = experts(x, gate, up, down, ids, weights)
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-5)


def test_fp8_activations_are_vllms_vectors() -> None:
    vector = VECTORS["ptpc_fp8_activation_vllm_rule_e4m3fn"]
    values, scale = fp8_per_token(jnp.asarray(vector["x"], jnp.float32))
    got = np.asarray(values).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(got, vector["bytes"])
    np.testing.assert_array_max_ulp(np.asarray(scale)[:, 0], np.float32(vector["scale"]), maxulp=1)


def test_int8_activations_round_half_to_even() -> None:
    vector = VECTORS["int8_pertoken_aiter_reference"]
    values, scale = int8_per_token(jnp.asarray(vector["x"], jnp.float32))
    np.testing.assert_array_equal(np.asarray(values), vector["round_half_even"])
    np.testing.assert_allclose(np.asarray(scale)[:, 0], vector["scale"], rtol=1e-6)


def test_mxfp4_activations_are_quarks_weights() -> None:
    vector = VECTORS["quark_mxfp4"]
    packed = np.array(vector["packed_u8"], np.uint8)
    scale = np.array(vector["scale_e8m0_u8"], np.uint8)
    quark = QuantizedArray(jnp.asarray(packed), jnp.asarray(scale), QuantFormat("mxfp4"))
    got = jax.jit(mxfp4_round_trip)(jnp.asarray(vector["w"], jnp.float32))
    np.testing.assert_array_equal(np.asarray(got), np.asarray(dequantize(quark)))


def test_activations_of_another_scheme_are_refused() -> None:
    with pytest.raises(ValueError, match="int4_group weights take activations none, got 'mxfp4'"):
        QuantFormat("int4_group", "mxfp4")
