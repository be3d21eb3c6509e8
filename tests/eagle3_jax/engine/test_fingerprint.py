"""Pairs whose pages differ have other names."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from driving import sizes
from tiny import tiny_target
from tiny_vision import VISION

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.programs.fingerprint import page_fingerprint

WEIGHTS = [
    np.random.default_rng(i).integers(0, 256, (4, 8), np.uint8).view(dtype)
    for i, dtype in enumerate(["u1", "i1", "f4", "i4", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
]


def name_of(weights: list[np.ndarray], vision: VisionConfig | None = None, **fields: Any) -> bytes:
    arrays = tuple(map(jnp.asarray, weights))
    return page_fingerprint(tiny_target().config, None, arrays, sizes(3, **fields), 50, vision)


@pytest.mark.parametrize("which", range(len(WEIGHTS)))
@pytest.mark.parametrize("place", [0, 13, 31])
def test_every_bit_of_the_weights_is_in_a_pairs_name(which: int, place: int) -> None:
    changed = [array.copy() for array in WEIGHTS]
    changed[which].view(np.uint8).reshape(-1)[place] ^= 1
    assert name_of(changed) != name_of(WEIGHTS)


def test_a_pairs_name_tells_places_sizes_and_modes_apart() -> None:
    swapped = [array[::-1] for array in WEIGHTS]
    names = [name_of(WEIGHTS), name_of(swapped), name_of(WEIGHTS, page_size=8)]
    names += [name_of(WEIGHTS, exact=True), name_of(WEIGHTS[1:])]
    names += [name_of(WEIGHTS, kv_cache_dtype="fp8", kv_cache_scale=s) for s in (0.5, 0.25)]
    seeing = [{}, {"mm_draft_embedding": "target"}]
    names += [name_of(WEIGHTS, VISION, **fields) for fields in seeing]
    names += [name_of(WEIGHTS, replace(VISION, projector_ln_eps=1e-3))]
    assert len({*names}) == len(names)
    assert name_of(WEIGHTS) == names[0]
