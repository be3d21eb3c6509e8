"""Device rows of sampling options for tests that have no request."""

from dataclasses import fields, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from eagle3_jax.sampling.options import MAX_STOP_IDS
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows, pack_sampling


def sampling_rows(batch: int, stop_ids: ArrayLike = (), **given: Any) -> SamplingRows:
    """Make rows with the given fields, values or arrays [batch]; other options are off.

    The temperature is 1 and each row has its own seed.
    """
    row, stops = pack_sampling(SamplingParams()), np.full((batch, MAX_STOP_IDS), -1)
    stops[:, : np.shape(stop_ids)[-1]] = stop_ids
    given = {"seed": np.arange(2 * batch).reshape(batch, 2), "stop_ids": stops, **given}

    def every(name: str, value: Any) -> jax.Array:
        asked = np.asarray(given.pop(name, value), value.dtype)
        shape = batch, *value.shape[1:]
        return jnp.asarray(np.broadcast_to(asked, shape))

    rows = {field.name: every(field.name, getattr(row, field.name)) for field in fields(row)}
    assert not given, f"no such fields: {given}"
    return replace(row, **rows)
