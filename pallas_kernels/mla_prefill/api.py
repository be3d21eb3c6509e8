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
    """Attend a chunk of a prompt causally to a paged pool of latents, its own rows among them.

    A latent c of the pool stands for each head's key c @ key_kernel[head], followed by the row's
    rotated part, and for its value c @ value_kernel[head]. There are no trees here. On a GPU keys
    and values of the context are computed once for all rows, which from about 170 rows on is less
    work than absorbing them (kv_lora 512, heads of 128).
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
    """As `mla_prefill`, to a part of the context that others are joined with.

    What it returns is float32: values, and the logarithm to the base 2 of each row's mass, the sum
    of exp(score) over the slots it sees. Of a context that is cut anywhere the values are the
    parts' own, weighed by 2 ** log-mass. positions of -1 see nothing: 0 and -inf.
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
    """Raises ValueError where shapes do not fit."""
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
