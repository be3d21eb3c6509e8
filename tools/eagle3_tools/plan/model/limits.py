"""Checks for 32-bit overflow: offsets into a pool or a stack of weights, ids of rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from eagle3_tools.plan.model.memory import ITEMSIZE, Memory

INT32 = 1 << 31
WIDE = "64-bit offsets in kernels beyond"


@dataclass(frozen=True)
class Limit:
    """One count that 32-bit arithmetic limits, on one device.

    count: its size when the pools take all available memory; most: KV tokens at which it reaches
    2^31, None if it does not depend on them. answer: the engine's handling.
    """

    what: str
    count: int
    most: int | None
    answer: str

    @property
    def binds(self) -> bool:
        """True if signed 32 bits are too few."""
        return self.count >= INT32


def limits(memory: Memory, kv_cache_dtype: str) -> Iterator[Limit]:
    """Yield every count that may overflow, with pools as large as possible."""
    tokens = memory.pages(kv_cache_dtype) * memory.page_tokens
    itemsize = ITEMSIZE[kv_cache_dtype]
    for pool in memory.pools:
        of = partial(_of, tokens, pool.context_parts)
        yield of(f"numbers in a pool of {pool.name}", pool.elements, WIDE)
        bytes_of = f"bytes of a pool of {pool.name}"
        yield of(bytes_of, pool.elements * itemsize, "kernels count numbers, not bytes")
        if pool is memory.pools[0]:
            stacked = f"numbers in all {pool.layers} of them, if they were one array"
            yield of(stacked, pool.elements * pool.layers, "one array a layer")
    fewest = min(pool.context_parts for pool in memory.pools)
    yield _of(tokens, fewest, "rows of a pool", 1, "page and offset stay apart")
    for name, model in (("target", memory.target), ("draft", memory.draft)):
        if model is not None:
            path, elements = model.largest
            yield Limit(f"numbers in the {name}'s {path}", elements, None, WIDE)


def _of(tokens: int, context_parts: int, what: str, each: int, answer: str) -> Limit:
    """Build a limit of `each` numbers a row; a device has one token's row in context_parts."""
    return Limit(what, tokens // context_parts * each, INT32 // each * context_parts, answer)
