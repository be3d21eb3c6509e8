"""Encoders against published vectors, transformers' own code and the rules of rounding."""

import warnings
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
import pytest
from decoding import dequantize, signed
from hypothesis import given
from hypothesis import strategies as st
from oracle_files import ORACLES
from quantizing import weights

from convert.files.safetensors_files import read_json
from convert.published.nibbles import (
    flip_offset_binary,
    pack_pairs,
    pairs_to_words,
    unpack_pairs,
    words_to_pairs,
)
from convert.quantize.schemes import e2m1_codes, scheme_of, to_e4m3
from convert.quantize.select import SCHEME_NAMES

VECTORS = read_json(ORACLES / "published/test_vectors.json")
SCHEMES = {name: scheme_of(name) for name in SCHEME_NAMES} | {"int4 grouped": scheme_of("int4", 32)}
DTYPES = [np.float32, np.float16, jnp.bfloat16]
all_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)


def words_in(pairs: np.ndarray, order: Any) -> np.ndarray:
    """Nibbles as words of an order; AWQ's shuffle, done three times, changes nothing."""
    words = pairs_to_words(pairs)
    return words if order == "linear" else shuffled(shuffled(words))


def shuffled(words: np.ndarray) -> np.ndarray:
    return pairs_to_words(words_to_pairs(words, "awq"))


@pytest.mark.parametrize(("reorder", "order"), [("False", "linear"), ("True", "awq")])
def test_vectors_of_quark_int4_packing(reorder: str, order: Any) -> None:
    vector = VECTORS[f"quark_int4_pack_reorder_{reorder}"]
    words = words_in(pack_pairs(np.array(vector["values"])), order)
    assert words.reshape(-1).tolist() == vector["int32"]
    assert signed(unpack_pairs(words_to_pairs(words, order))).tolist() == vector["values"]


@all_dtypes
def test_fp8_blocks_are_those_of_transformers(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Quantize

    class Quantizer:
        quantization_config = FineGrainedFP8Config()

    weight = weights(256, 384, dtype)
    weight[:128, 128:256] = 0
    name = {"float32": "float32", "float16": "float16"}.get(weight.dtype.name, "bfloat16")
    given_weight = torch.from_numpy(weight.astype(np.float32)).to(getattr(torch, name))
    theirs = cast(Any, Fp8Quantize)(Quantizer()).convert({"x.weight": given_weight})
    ours = SCHEMES["fp8_block"].encode(weight)
    expected = theirs["x.weight"].view(torch.uint8).numpy()
    np.testing.assert_array_equal(ours["weight"].view(np.uint8), expected)
    scale = theirs["x.weight_scale_inv"].numpy()
    np.testing.assert_array_equal(ours["weight_scale_inv"], scale)


def test_fp8_blocks_at_the_edges_are_smaller() -> None:
    weight = weights(200, 300, np.float32)
    parts = SCHEMES["fp8_block"].encode(weight)
    assert parts["weight_scale_inv"].shape == (2, 3)
    corner = SCHEMES["fp8_block"].encode(weight[128:, 256:])
    assert parts["weight_scale_inv"][1, 2] == corner["weight_scale_inv"]
    np.testing.assert_array_equal(parts["weight"][128:, 256:], corner["weight"])


def test_an_fp8_block_too_small_for_a_finite_scale_is_zeros() -> None:
    """Its neighbours keep their own scales."""
    weight = np.full((128, 384), 1e-36, np.float32)
    weight[:, 128:256] = np.float32(2.0**-116)
    weight[:, 256:] = 3.0
    parts = SCHEMES["fp8_block"].encode(weight)
    scales = parts["weight_scale_inv"]
    np.testing.assert_allclose(scales, [[1.0, 2.0**-116 / 448, 3 / 448]], rtol=1e-6)
    assert not parts["weight"][:, :128].astype(np.float32).any()
    assert (parts["weight"][:, 128:].astype(np.float32) == 448).all()


# Half a step of the format relative to the largest value that shares a scale.
HALF_STEP = {"ptpc_fp8": 1 / 14, "fp8_block": 1 / 14, "int4": 0.55 / 7.5, "mxfp4": 1 / 3}
SHARING = {"ptpc_fp8": None, "fp8_block": None, "int4": None, "int4 grouped": 32, "mxfp4": 32}


@pytest.mark.parametrize("name", SCHEMES)
@all_dtypes
def test_decoding_is_the_inverse_within_half_a_step(name: str, dtype: Any) -> None:
    weight = weights(256, 384, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decoded = dequantize(SCHEMES[name].encode(weight))
    exact = weight.astype(np.float32)
    sharing = exact.reshape(256, -1, SHARING[name] or 384)
    largest = np.abs(sharing).max(-1, keepdims=True)
    if name == "fp8_block":
        largest = np.abs(exact).max()
    error = np.abs(decoded.reshape(sharing.shape) - sharing)
    assert (error <= HALF_STEP[name.split()[0]] * largest).all()
    assert not decoded[0].any()


def test_int4_channels_come_in_whole_words() -> None:
    with pytest.raises(ValueError, match=r"eight INT4.*12 inputs should be a multiple"):
        scheme_of("int4").parts((4, 12))


@given(st.floats(-8, 8, width=32) | st.sampled_from([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]))
def test_e2m1_takes_the_nearest_value_and_the_even_code_of_two(value: float) -> None:
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    code = int(e2m1_codes(np.array([value], np.float32))[0])
    distance = np.abs(table - min(abs(value), 6))
    nearest = np.flatnonzero(distance == distance.min())
    assert code & 7 == (nearest[0] if len(nearest) == 1 else nearest[nearest % 2 == 0][0])
    assert code >> 3 == (value < 0 and code & 7 != 0)


@pytest.mark.parametrize(("largest", "exponent"), [(1.0, -2), (1.7499999, -2), (1.75, -1), (6, 0)])
def test_a_groups_exponent_is_that_of_its_largest_rounded_at_seven_quarters(
    largest: float, exponent: int
) -> None:
    group = np.full((1, 32), 0.5, np.float32)
    group[0, 7] = -largest
    assert SCHEMES["mxfp4"].encode(group)["weight_scale"].tolist() == [[127 + exponent]]


def test_e4m3_rounds_as_a_cast_does_for_every_half_and_around_every_tie() -> None:
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    finite = halves[np.abs(halves) <= 448]
    beside = [np.nextafter(finite, np.float32(side)) for side in (-448, 448)]
    values = np.concatenate([finite, *beside])
    expected = values.astype(jnp.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(to_e4m3(values).view(np.uint8), expected)
    assert to_e4m3(np.array([1e9, -1e9], np.float32)).astype(np.float32).tolist() == [448, -448]


@given(st.lists(st.integers(-8, 7), min_size=8, max_size=64).filter(lambda v: len(v) % 8 == 0))
def test_every_int4_value_survives_both_forms(values: list[int]) -> None:
    column = np.ones((1, 1), np.float32)
    pairs = pack_pairs(np.array([values]))
    packed = pairs_to_words(flip_offset_binary(pairs))
    grouped = {"weight_packed": packed, "weight_scale": column.astype(jnp.bfloat16)}
    channel = {"weight": pairs_to_words(pairs), "weight_scale": column[0]}
    progressive = {
        "weight": words_in(pairs, "awq"),
        "weight_scale": np.float32(1).reshape(()),
        "weight_scale_2": column[0],
    }
    for parts in (grouped, channel, progressive):
        assert dequantize(parts).tolist() == [values]
