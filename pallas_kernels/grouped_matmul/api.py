from collections.abc import Callable
from functools import partial
from typing import Any

from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import choose
from pallas_kernels.grouped_matmul import pallas, reference, xla
from pallas_kernels.grouped_matmul.shared import GatedKernels, swiglu
from pallas_kernels.grouped_matmul.tile_map import TileMap
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
        tiles, rows: Tile map of the ids and operand of x, if `pallas_kernels.route` made them.

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
    run = choose(
        "grouped_mlp",
        implementation,
        xla=partial(_with_shared, xla.grouped_mlp, rows_matmul, shared),
        reference=partial(_with_shared, reference.grouped_mlp, matmul, shared),
        pallas=pallas.refusal(x, *stacks)
        or partial(pallas.grouped_mlp, shared=shared, tiles=tiles, rows=rows),
    )
    return run(x, stacks, expert_ids, expert_weights)


def _with_shared(
    routed: Callable[..., Array],
    multiply: Callable[..., Array],
    shared: GatedKernels | None,
    x: Array,
    *arrays: Any,
) -> Array:
    total = routed(x, *arrays)
    return total if shared is None else total + swiglu(x, shared, multiply)
