"""Cases of attention over paged contexts, with NaN in every unwritten slot, and float64 answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from compiling import compiled
from numpy.typing import NDArray

from pallas_kernels import PagedKV, gqa_decode, mla_decode, mla_prefill

SCALE = 0.3
LATENT, ROTATED, HEAD_DIM, NOPE, VALUE = 16, 8, 8, 12, 10
HEADS = {"mla": 3, "gqa": 6, "chunk": 2}
"""Of `mla_decode`, `gqa_decode` and `mla_prefill`."""
QUERIES = {"mla": (LATENT, ROTATED), "gqa": (HEAD_DIM,), "chunk": (NOPE, ROTATED)}
NAMES = ["xla", "reference", "pallas"]


@dataclass(frozen=True)
class Case:
    """Operands [batch, q_len, heads, dim] of an operation, kernels of its heads, and a PagedKV."""

    kind: str
    queries: tuple[Any, ...]
    kernels: dict[str, Any]
    pools: tuple[Any, ...]
    table: Any
    positions: Any
    scales: tuple[Any, ...] = (None, None)
    ancestors: Any = None

    def of(self, sequences: Any, **changed: Any) -> "Case":
        """These sequences of the batch, in this order."""
        queries = tuple(q[sequences] for q in self.queries)
        table, positions = self.table[sequences], self.positions[sequences]
        chosen = {"queries": queries, "table": table, "positions": positions}
        return replace(self, **{**chosen, **changed})

    def cast(self, dtype: Any) -> "Case":
        """Queries, kernels and pools in another dtype."""
        queries, pools = (tuple(x.astype(dtype) for x in y) for y in (self.queries, self.pools))
        kernels = {name: kernel.astype(dtype) for name, kernel in self.kernels.items()}
        return replace(self, queries=queries, pools=pools, kernels=kernels)


def make_case(
    kind: str,
    lengths: list[int],
    q_len: int,
    page_size: int = 16,
    pages: int | None = None,
    kv_heads: int = 2,
) -> Case:
    """The last q_len positions of each sequence ask."""
    rng = np.random.default_rng(sum(lengths))
    row = (kv_heads, HEAD_DIM) if kind == "gqa" else (LATENT + ROTATED,)
    pools, table = [], np.zeros(())
    for _ in range(1 + (kind == "gqa")):
        contexts = [rng.normal(size=(n, *row)).astype(np.float32) for n in lengths]
        # The newest slots weigh most, so that a running softmax has to change its peak.
        rising = np.linspace(0.3, 2, lengths[-1], dtype=np.float32)
        contexts[-1] *= rising.reshape(-1, *(1,) * len(row))
        pool, table = scatter(contexts, page_size, pages or -(-max(lengths) // page_size))
        pools.append(pool)
    shape = (len(lengths), q_len, HEADS[kind])
    queries = tuple(rng.normal(size=(*shape, d)).astype(np.float32) for d in QUERIES[kind])
    kernels = {}
    if kind == "chunk":
        sizes = {"key_kernel": NOPE, "value_kernel": VALUE}
        kernels = {name: head_kernel(rng, kind, size) / 5 for name, size in sizes.items()}
    positions = np.array(lengths)[:, None] - q_len + np.arange(q_len)
    return Case(kind, queries, kernels, tuple(pools), table, positions.astype(np.int32))


def head_kernel(rng: np.random.Generator, kind: str, size: int) -> NDArray[np.float32]:
    return rng.normal(size=(HEADS[kind], LATENT, size)).astype(np.float32)


def attend_case(
    queries, kernels, pools, scales, table, positions, ancestors, *, kind, implementation
):
    paged = PagedKV(pools, scales[: len(pools)], table, positions, ancestors)
    operation: Any = {"mla": mla_decode, "gqa": gqa_decode, "chunk": mla_prefill}[kind]
    return operation(*queries, paged, SCALE, **kernels, implementation=implementation)


def run(case: Case, implementation: str) -> NDArray[Any]:
    call = compiled(attend_case, kind=case.kind, implementation=implementation)
    paged = case.pools, case.scales, case.table, case.positions, case.ancestors
    found = np.asarray(call(case.queries, case.kernels, *paged))
    return found.reshape(case.queries[0].shape) if case.kind == "gqa" else found


def oracle(
    case: Case, seen: Callable[[int, int], Iterable[int]] | None = None
) -> NDArray[np.float64]:
    """Loops in float64; seen: slots that a query sees, all up to its position by default."""
    batch, q_len, heads = case.queries[0].shape[:3]
    out: list[Any] = []
    for b, j, h in np.ndindex(batch, q_len, heads):
        slots = list(seen(b, j)) if seen else range(case.positions[b, j] + 1)
        rows = [
            np.asarray(pool)[case.table[b]].reshape(-1, *pool.shape[2:])[slots].astype(np.float64)
            for pool in case.pools
        ]
        query = np.concatenate([np.asarray(q[b, j, h], np.float64) for q in case.queries])
        kernels = {name: kernel[h] for name, kernel in case.kernels.items()}
        out.append(_attend(case.kind, query, rows, kernels, h * rows[0].shape[1] // heads))
    return np.array(out).reshape(batch, q_len, heads, -1)


def _attend(
    kind: str, query: NDArray[Any], rows: list[NDArray[Any]], kernels: dict[str, Any], kv_head: int
) -> NDArray[Any]:
    if kind == "gqa":
        keys, values = (row[:, kv_head] for row in rows)
        return attend(query, keys, values, SCALE)
    latent, rotated = np.split(rows[0], [LATENT], axis=1)
    if kind == "mla":
        mean = attend(query, rows[0], latent, SCALE)
        return mean @ kernels["value_kernel"] if kernels else mean
    keys = np.concatenate([latent @ kernels["key_kernel"], rotated], axis=1)
    return attend(query, keys, latent @ kernels["value_kernel"], SCALE)


def scatter(
    contexts: Sequence[NDArray[np.float32]], page_size: int, pages_per_seq: int, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Contexts [length, ...] of each sequence -> a pool in random page order and its page table."""
    pages = len(contexts) * pages_per_seq + 1
    order = np.random.default_rng(seed).permutation(pages)[:-1]
    table = order.reshape(len(contexts), pages_per_seq).astype(np.int32)
    pool = np.full((pages, page_size, *contexts[0].shape[1:]), np.nan, np.float32)
    for pages_of_seq, context in zip(table, contexts, strict=True):
        for slot, row in enumerate(context):
            pool[pages_of_seq[slot // page_size], slot % page_size] = row
    return pool, table


def attend(
    query: NDArray[Any], keys: NDArray[Any], values: NDArray[Any], scale: float
) -> NDArray[Any]:
    """One query [d] against keys [s, d] and values [s, v]."""
    scores = keys @ query * scale
    weights = np.exp(scores - scores.max())
    return weights @ values / weights.sum()


def local_parts(
    pool: NDArray[np.float32], positions: NDArray[np.int32], parts: int
) -> list[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Each device's pool, with one of so many equal parts of every page, and for each position the
    last slot there that is not after it, counted in the device's own slots; -1 for none."""
    size = pool.shape[1] // parts
    whole, rest = np.divmod(positions + 1, pool.shape[1])
    return [
        (
            pool[:, device * size : (device + 1) * size],
            (whole * size + np.clip(rest - device * size, 0, size) - 1).astype(np.int32),
        )
        for device in range(parts)
    ]
