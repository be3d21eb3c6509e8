"""Whether a kernel computes what its contract says, on the device that it is timed on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.case import Case


def largest_error(case: Case, arguments: tuple[Any, ...]) -> float:
    """Largest difference from the contract in float32, as a share of the largest value.

    Integers (which expert, which token) count as the share of them that differ.
    """
    got = jax.tree.leaves(jax.jit(lambda *a: case.run(*a))(*arguments))
    with jax.default_matmul_precision("highest"):
        wide = jax.tree.map(_wide, arguments)
        wanted = jax.tree.leaves(jax.jit(lambda *a: case.reference(*a))(*wide))
    return max(_error(np.asarray(g), np.asarray(w)) for g, w in zip(got, wanted, strict=True))


def _wide(x: Any) -> Any:
    return x.astype(jnp.float32) if x.dtype == jnp.bfloat16 else x


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    if np.issubdtype(wanted.dtype, np.integer) or wanted.dtype == bool:
        return float(np.mean(got != wanted))
    wide = wanted.astype(np.float64)
    scale = np.abs(wide).max() or 1.0
    error = np.abs(got.astype(np.float64) - wide).max() / scale
    return float(error) if np.isfinite(error) else float("inf")
