import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pallas_kernels.fp8_matmul import matmul
from pallas_kernels.grouped_matmul import GatedKernels, can_join, grouped_mlp
from pallas_kernels.joint_matmul import gated_matmul
from pallas_kernels.quantized import QuantizedArray
from pallas_kernels.route import Held, RouterOptions, route


def moe_mlp(
    x: Float[Array, "tokens hidden"],
    logits: Float[Array, "tokens all_experts"],
    bias: Float[Array, " all_experts"],
    experts: GatedKernels,
    options: RouterOptions,
    *,
    first: Int[Array, ""] | int | None = None,
    shared: GatedKernels | None = None,
) -> Float[Array, "tokens hidden"]:
    """Return the weighted sum of each token's experts, plus the shared expert if there is one.

    `route` chooses and weights the experts from float32 logits. experts: stacks [experts, in, out]
    of each matrix: a device's experts, beginning with `first` (None: it has all), or its part of
    each; the result is then what this device adds to the sum over all. shared: one matrix [in, out]
    each. All of them may be quantised. Where kernels can, x is quantised in the router's launch,
    and the shared expert runs in the launches of the routed ones. Raises ValueError on shapes that
    do not fit.
    """
    gate = experts.gate
    held = None if first is None else Held(jnp.reshape(first, 1), gate.shape[0])
    format = gate.format if isinstance(gate, QuantizedArray) else None
    with jax.named_scope("moe_router"):
        *chosen, tiles, rows = route(logits, bias, options, x=x, format=format, held=held)
    ready = {"tiles": tiles, "rows": rows}
    if shared is not None and can_join(shared, experts):
        with jax.named_scope("moe_experts"):
            return grouped_mlp(x, *experts, *chosen, **ready, shared=shared)
    with jax.named_scope("moe_routed_experts"):
        routed = grouped_mlp(x, *experts, *chosen, **ready)
    if shared is None:
        return routed
    with jax.named_scope("moe_shared_expert"):
        own = matmul(gated_matmul(x, shared.gate, shared.up), shared.down)
        # Without the barrier, the GPU's library adds the routed sum to its product. That sum then
        # needs a separate launch, instead of being part of the one that adds the residual.
        return routed + jax.lax.optimization_barrier(own)
