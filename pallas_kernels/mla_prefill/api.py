from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.mla_prefill import pallas, reference, xla
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import refusal


def mla_prefill(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
    implementation: str | None = None,
) -> Float[Array, "batch q_len heads value"]:
    """Attend a prompt chunk causally to a paged pool of latents that already holds its rows.

    For each head, a latent c of the pool has the key c @ key_kernel[head], followed by the row's
    rotated part, and the value c @ value_kernel[head]. Trees are not supported. On a GPU, keys and
    values of the context are computed once for all rows. From about 170 rows on, this is less work
    than absorbing them (kv_lora 512, heads of 128).
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    _check("mla_prefill", q_nope, q_rope, paged, key_kernel, value_kernel)
    kernel = refusal(q_nope, paged.pools[0]) or pallas.mla_prefill
    forms = {"xla": xla.mla_prefill, "reference": reference.mla_prefill, "pallas": kernel}
    run = choose("mla_prefill", implementation, **forms)
    return run(q_nope, q_rope, paged, scale, key_kernel=key_kernel, value_kernel=value_kernel)


def mla_prefill_part(
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
    *,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
    implementation: str | None = None,
) -> tuple[Float[Array, "batch q_len heads value"], Float[Array, "batch q_len heads"]]:
    """Run `mla_prefill` on a part of the context, for joining with other parts.

    Returns float32 values and the base-2 logarithm of each row's mass, the sum of exp(score) over
    the slots it sees. The values of a split context are the parts' values weighted by 2 **
    log-mass. A query with position -1 sees no slot and returns 0 and -inf.
    Raises ValueError as `mla_prefill` does.
    """
    _check("mla_prefill_part", q_nope, q_rope, paged, key_kernel, value_kernel)
    kernel = refusal(q_nope, paged.pools[0]) or pallas.mla_prefill_part
    forms = {"xla": xla.mla_prefill_part, "reference": reference.mla_prefill_part, "pallas": kernel}
    run = choose("mla_prefill_part", implementation, **forms)
    return run(q_nope, q_rope, paged, scale, key_kernel=key_kernel, value_kernel=value_kernel)


def _check(
    operation: str,
    q_nope: Float[Array, "batch q_len heads nope"],
    q_rope: Float[Array, "batch q_len heads rope"],
    paged: PagedKV,
    key_kernel: Float[Array, "heads kv_lora nope"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> None:
    """Raise ValueError if shapes do not fit."""
    (pool,) = paged.pools
    kernels = key_kernel.shape[:2], value_kernel.shape[:2]
    if kernels[0] != kernels[1] or kernels[0][0] != q_nope.shape[2]:
        raise ValueError(
            f"{operation}: key_kernel {key_kernel.shape} and value_kernel {value_kernel.shape} "
            f"must be (heads, kv_lora, size) with the queries' {q_nope.shape[2]} heads"
        )
    if pool.shape[-1] != key_kernel.shape[1] + q_rope.shape[-1]:
        raise ValueError(
            f"{operation}: a pool row has {pool.shape[-1]} values, expected "
            f"{key_kernel.shape[1]} + {q_rope.shape[-1]}; rows are latent, then rope part"
        )
    if paged.ancestors is not None:
        raise ValueError(f"{operation}: expected rows of a chunk, got nodes of a tree")
    paged.check(operation, q_nope)
