"""Collectives on 8 devices against the whole array, and every device's copy against the others'."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_devices import AXES, on_devices

from eagle3_jax.collectives import Axis, all_max, all_sum, all_true, first_column, gather_pairs

PARTS = np.random.default_rng(0).integers(-4, 5, (8, 3, 2)).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (all_sum, PARTS.sum(0)),
        (all_max, PARTS.max(0)),
        (lambda x, axis: all_true(x > -4, axis), (PARTS > -4).all(0)),
    ],
)
def test_reductions_give_every_device_the_whole(function: Any, expected: np.ndarray) -> None:
    copies = on_devices(8, lambda part: function(part[0], AXES), split=(0,))(jnp.asarray(PARTS))
    for copy in np.asarray(copies):
        np.testing.assert_array_equal(copy, expected)


def test_pairs_come_in_the_order_of_the_columns_bit_for_bit() -> None:
    scores = np.random.default_rng(1).normal(size=(3, 16)).astype(np.float32)
    scores[0, :4] = np.nan, -np.inf, -0.0, 1e-45

    def pairs(part: jax.Array, axis: Axis) -> tuple[jax.Array, jax.Array]:
        ids = first_column(part.shape[-1], axis) + jnp.arange(part.shape[-1])
        return gather_pairs(part, jnp.broadcast_to(ids, part.shape), axis)

    found = on_devices(8, partial(pairs, axis=AXES), split=(1,))(jnp.asarray(scores))
    for copies, whole in zip(found, pairs(jnp.asarray(scores), None), strict=True):
        for copy in np.asarray(copies):
            np.testing.assert_array_equal(copy.view(np.int32), np.asarray(whole).view(np.int32))
