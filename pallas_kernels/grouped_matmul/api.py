from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import choose
from pallas_kernels.grouped_matmul import reference, xla
from pallas_kernels.quantized import QuantizedArray

IMPLEMENTATIONS = {
    "xla": xla.grouped_mlp,
    "reference": reference.grouped_mlp,
    "pallas": "the GPU kernel is not written yet",
}


def grouped_mlp(
    x: Float[Array, "tokens hidden"],
    gate: Float[Array, "experts gate_in inter"] | QuantizedArray,
    up: Float[Array, "up_experts up_in up_inter"] | QuantizedArray,
    down: Float[Array, "down_experts down_in down_out"] | QuantizedArray,
    expert_ids: Int[Array, "id_tokens top_k"],
    expert_weights: Float[Array, "weight_tokens weight_k"],
    *,
    implementation: str | None = None,
) -> Float[Array, "tokens hidden"]:
    """Each token's weighted sum of its chosen experts, down(silu(gate x) * up x).

    expert_ids [tokens, top_k] in [0, experts), weights float32. A row's sum runs in the order of
    its choices, so at a fixed number of tokens a row's bits never depend on the other rows.
    Quantised stacks multiply as `pallas_kernels.matmul` says, down's input included.
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
    run = choose("grouped_mlp", implementation, IMPLEMENTATIONS)
    return run(x, gate, up, down, expert_ids, expert_weights)
