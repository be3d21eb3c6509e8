"""Mixture of experts: the sum of each token's experts, which are gated MLPs."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import Operation
from pallas_kernels.grouped_matmul.pallas import launch_grouped_mlp, refusal
from pallas_kernels.grouped_matmul.shared import GatedKernels, swiglu
from pallas_kernels.grouped_matmul.tile_map import TileMap
from pallas_kernels.grouped_matmul.xla import grouped_mlp_on_cpu
from pallas_kernels.quantized import QuantizedArray, matmul
from pallas_kernels.streamed import rows_matmul
from pallas_kernels.tile_product import Operand


def grouped_mlp(
    x: Float[Array, "tokens hidden"],
    gate: Float[Array, "experts hidden inter"] | QuantizedArray,
    up: Float[Array, "experts hidden inter"] | QuantizedArray,
    down: Float[Array, "experts inter hidden"] | QuantizedArray,
    expert_ids: Int[Array, "tokens top_k"],
    expert_weights: Float[Array, "tokens top_k"],
    *,
    shared: GatedKernels | None = None,
    tiles: TileMap | None = None,
    rows: Operand | None = None,
    implementation: str | None = None,
) -> Float[Array, "tokens hidden"]:
    """Return each token's weighted sum of its chosen experts, down(silu(gate x) * up x).

    expert_weights are float32. An id outside [0, experts) belongs to another device and adds
    nothing. A row's sum runs in the order of its choices, so at a fixed number of tokens its bits
    never depend on the other rows. Quantised stacks multiply as `pallas_kernels.matmul` does,
    including down's input.

    Args:
        shared: An expert that every token takes too, with weight 1.
        tiles: Tile map of the ids, if `pallas_kernels.route` made it.
        rows: Operand of x, likewise.

    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    experts, hidden, inter = gate.shape
    if (
        x.shape[1] != hidden
        or up.shape != gate.shape
        or down.shape != (experts, inter, hidden)
        or expert_ids.shape != expert_weights.shape
        or expert_ids.shape[0] != x.shape[0]
    ):
        raise ValueError(
            "grouped_mlp: expected x [t, hidden], gate and up [e, hidden, inter], "
            "down [e, inter, hidden], ids and weights [t, k]; got "
            f"{x.shape}, {gate.shape}, {up.shape}, {down.shape}, "
            f"{expert_ids.shape}, {expert_weights.shape}"
        )
    stacks = GatedKernels(gate, up, down)
    made = {"shared": shared, "tiles": tiles, "rows": rows}
    return GROUPED_MLP(implementation, x, stacks, expert_ids, expert_weights, **made)


def _reference(
    x: Array,
    stacks: GatedKernels,
    ids: Array,
    weights: Array,
    *,
    shared: GatedKernels | None = None,
    **_: Any,
) -> Array:
    gate, up, down = stacks
    total = jnp.zeros(x.shape, jnp.float32)
    for own_ids, weight in zip(ids.T, weights.T, strict=True):
        held = (own_ids >= 0) & (own_ids < gate.shape[0])
        own = jnp.where(held, own_ids, 0)
        inner = jax.nn.silu(_row_times_own(x, gate[own])) * _row_times_own(x, up[own])
        chosen = weight[:, None] * _row_times_own(inner, down[own])
        total += jnp.where(held[:, None], chosen, 0)
    routed = total.astype(x.dtype)
    return routed if shared is None else routed + swiglu(x, shared)


def _row_times_own(
    x: Float[Array, "tokens inputs"],
    kernels: Float[Array, "tokens inputs outputs"] | QuantizedArray,
) -> Float[Array, "tokens outputs"]:
    """Multiply each row by the kernel chosen for it."""
    if isinstance(kernels, QuantizedArray):
        return jax.vmap(lambda row, kernel: matmul(row[None], kernel)[0])(x, kernels)
    return jnp.einsum("ti,tio->to", x, kernels)


def _on_cpu(
    x: Array, *routed: Any, shared: GatedKernels | None = None, tiles: Any = None, rows: Any = None
) -> Array:
    total = grouped_mlp_on_cpu(x, *routed)
    return total if shared is None else total + swiglu(x, shared, rows_matmul)


def _refuse(x: Array, stacks: GatedKernels, *_: Any, **__: Any) -> str | None:
    return refusal(x, *stacks)


GROUPED_MLP = Operation(
    "grouped_mlp", reference=_reference, pallas=launch_grouped_mlp, refuse=_refuse, xla=_on_cpu
)
