from jaxtyping import Array, Float, Int

from pallas_kernels.dispatch import choose
from pallas_kernels.item_attention import pallas, reference, xla


def item_attention(
    q: Float[Array, "n heads dim"],
    k: Float[Array, "n heads dim"],
    v: Float[Array, "n heads dim"],
    items: Int[Array, " n"],
    scale: float,
    *,
    implementation: str | None = None,
) -> Float[Array, "n heads dim"]:
    """Compute softmax(scale * q k^T) v over the rows of each row's own item, without causal mask.

    items: the item number of each row. It never decreases, so an item's rows are contiguous. No
    implementation stores the scores of all pairs of rows.
    Raises ValueError on shapes that do not fit and on an implementation that cannot run.
    """
    if not q.shape == k.shape == v.shape or items.shape != q.shape[:1]:
        raise ValueError(
            f"item_attention: q {q.shape}, k {k.shape} and v {v.shape} must be (n, heads, dim) "
            f"alike, with items (n,), got {items.shape}"
        )
    forms = {"xla": xla.item_attention, "reference": reference.item_attention}
    run = choose("item_attention", implementation, **forms, pallas=pallas.item_attention)
    return run(q, k, v, items, scale)
