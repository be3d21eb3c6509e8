"""Host memory below the KV cache: its capacity, and when loading a prefix beats recomputing it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagle3_tools.plan.data.gpus import HOST_LINK
from eagle3_tools.plan.model.divided_context import first_number
from eagle3_tools.plan.model.kernels import seconds
from eagle3_tools.plan.model.memory import ITEMSIZE, Pool
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import StepRows, target_work

PREFIXES = (1024, 8192, 32_768, 100_000, 200_000)
"""Prefix lengths in tokens that a plan shows, if the model supports them."""
BOUND = "tuned"


@dataclass(frozen=True)
class HostMemory:
    """Host memory for KV pages. nbytes: its size. pools: of the whole pair, as on one device: rows
    that several devices hold are copied once, each device copying a part. chunk: tokens of a
    prefill chunk."""

    nbytes: int
    pools: tuple[Pool, ...]
    shapes: Mapping[str, Shapes]
    kv_cache_dtype: str
    page_tokens: int
    chunk: int
    longest: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV in host memory, target and draft."""
        elements = sum(pool.elements * pool.layers for pool in self.pools)
        return elements * ITEMSIZE[self.kv_cache_dtype]

    @property
    def tokens(self) -> int:
        """Tokens that the host memory holds."""
        return self.nbytes // (self.token_bytes * self.page_tokens) * self.page_tokens

    @property
    def prefixes(self) -> tuple[int, ...]:
        return tuple(length for length in PREFIXES if length <= self.longest)

    def load_s(self, tokens: int, links: int) -> float:
        """Return the seconds to load a prefix over `links` links to the host."""
        return tokens * self.token_bytes / (links * HOST_LINK)

    def prefill_s(self, gpu: str, tokens: int) -> float:
        """Return the seconds of the target's prefill chunks that compute a prefix."""
        shapes = self.shapes[gpu]
        return sum(
            seconds(target_work(shapes.target, rows), shapes.gpu, BOUND)
            for rows in self._chunks(tokens)
        )

    def step_s(self, gpu: str) -> float:
        """Return the seconds of a one-row step: the longest wait of an arrived page for the program
        that puts it in place."""
        return self.prefill_s(gpu, 1)

    def least_tokens(self, gpu: str) -> int:
        """Return the fewest tokens, in whole pages, that load faster than they are recomputed, or
        the model's longest context. Loading costs the wait for a step and the copy, recomputing the
        chunks."""
        links, size = self.shapes[gpu].target.parallel.devices, self.page_tokens

        def pays(pages: int) -> bool:
            loading = self.step_s(gpu) + self.load_s(pages * size, links)
            return loading < self.prefill_s(gpu, pages * size)

        return size * (first_number(pays, 1, self.longest // size) or self.longest // size)

    def _chunks(self, tokens: int) -> Iterator[StepRows]:
        for start in range(0, tokens, self.chunk):
            count = min(self.chunk, tokens - start)
            yield StepRows(1, count, start + count / 2, ITEMSIZE[self.kv_cache_dtype])
