"""Checks for 32-bit overflow: offsets into a pool or a stack of weights, ids of rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from eagle3_tools.plan.model.memory import ITEMSIZE, Memory

INT32 = 1 << 31
WIDE = "64-bit offsets in kernels beyond"


@dataclass(frozen=True)
class Limit:
    """One count that 32-bit arithmetic bounds, on one device.

    count: how large it is when the pools take all the memory there is; most: the tokens of KV at
    which it reaches 2^31, None where it does not depend on them. answer: what the engine does.
    """

    what: str
    count: int
    most: int | None
    answer: str

    @property
    def binds(self) -> bool:
        """Whether signed 32 bits are too few."""
        return self.count >= INT32


def limits(memory: Memory, kv_cache_dtype: str) -> Iterator[Limit]:
    """Every count that may bind, with pools as large as they can be."""
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
    """each: of a row; a device has rows of one token in context_parts."""
    return Limit(what, tokens // context_parts * each, INT32 // each * context_parts, answer)
