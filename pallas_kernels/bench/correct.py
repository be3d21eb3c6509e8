"""Whether a kernel computes what its contract says, on the device that it is timed on."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.case import Case


def compile_contract(case: Case, shapes: tuple[Any, ...]) -> Callable[..., Any]:
    """The contract for arguments like these, bfloat16 widened to float32, in full precision."""
    wide = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, _wide(x.dtype)), shapes)
    with jax.default_matmul_precision("highest"):
        program = jax.jit(lambda *a: case.reference(*a)).lower(*wide).compile()
    return lambda *arguments: program(*jax.tree.map(lambda x: x.astype(_wide(x.dtype)), arguments))


def largest_error(got: Any, wanted: Any) -> float:
    """Largest difference from what the contract gave, as a share of the largest value.

    Integers (which expert, which token) count as the share of them that differ.
    """
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True)
    return max(_error(np.asarray(g), np.asarray(w)) for g, w in pairs)


def _wide(dtype: Any) -> Any:
    return jnp.float32 if dtype == jnp.bfloat16 else dtype


def _error(got: np.ndarray, wanted: np.ndarray) -> float:
    if np.issubdtype(wanted.dtype, np.integer) or wanted.dtype == bool:
        return float(np.mean(got != wanted))
    wide = wanted.astype(np.float64)
    scale = np.abs(wide).max() or 1.0
    error = np.abs(got.astype(np.float64) - wide).max() / scale
    return float(error) if np.isfinite(error) else float("inf")
