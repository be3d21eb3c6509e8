"""Sampling options of a batch as device data, so that no option ever triggers compilation."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from eagle3_jax.sampling.options import MAX_STOP_IDS, AppliedBy
from eagle3_jax.sampling.params import REQUEST_OPTIONS, SamplingParams


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingRows:
    """Sampling options of each sequence of a batch.

    Fields with the name of a request option hold its number. In lean programs, options that only
    full programs apply are None. `seed` holds the low and the high word. `stop_ids`, padded with
    -1, cannot be sampled at positions before `min_len`.
    """

    temperature: Float[Array, " batch"]
    top_p: Float[Array, " batch"]
    min_p: Float[Array, " batch"]
    top_k: Int[Array, " batch"]
    typical_p: Float[Array, " batch"] | None
    seed: UInt32[Array, "batch 2"]
    min_len: Int[Array, " batch"]
    stop_ids: Int[Array, "batch max_stop_ids"]


NUMBERS = {
    row.name: np.float32 if REQUEST_OPTIONS[row.name].json is float else np.int32
    for row in fields(SamplingRows)
    if row.name in REQUEST_OPTIONS and row.name != "seed"
}
"""Options that are one number per row, with their dtypes."""
FILTERS = [name for name in NUMBERS if REQUEST_OPTIONS[name].filters]
FULL = [n for n in NUMBERS if REQUEST_OPTIONS[n].applied_by is AppliedBy.FULL_PROGRAMS]


def pack_sampling(
    sampling: SamplingParams, seed: int = 0, min_len: int = 0, stop_ids: Sequence[int] = ()
) -> SamplingRows:
    """Pack one request's row [1, ...] in NumPy, with the first MAX_STOP_IDS of its stop ids."""
    # NumPy arrays stand in for device arrays until the runner sends them.
    row: dict[str, Any] = {
        name: np.array([getattr(sampling, name)], dtype) for name, dtype in NUMBERS.items()
    }
    stops = np.full((1, MAX_STOP_IDS), -1, np.int32)
    stops[0, : len(stop_ids)] = stop_ids[:MAX_STOP_IDS]
    seed %= 2**64
    row["seed"] = np.array([[seed % 2**32, seed >> 32]], np.uint32)
    row["min_len"], row["stop_ids"] = np.array([min_len], np.int32), stops
    return SamplingRows(**row)


def lean_rows(options: SamplingRows) -> SamplingRows:
    """Drop the options that only full programs apply, so that lean programs do not pay for them."""
    return replace(options, **dict.fromkeys(FULL))


def filters_off(options: SamplingRows, where: Bool[Array, " batch"]) -> SamplingRows:
    """Turn off the options that bar candidates in the rows selected by `where`."""
    given = {name: getattr(options, name) for name in FILTERS}
    off = {
        name: jnp.where(where, REQUEST_OPTIONS[name].off[0], value)
        for name, value in given.items()
        if value is not None
    }
    return replace(options, **off)
