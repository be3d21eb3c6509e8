"""Host memory below the KV cache: what it holds, and whether a prefix is loaded or run again."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eagle3_tools.plan.data.gpus import HOST_LINK
from eagle3_tools.plan.model.divided_context import first_number
from eagle3_tools.plan.model.kernels import seconds
from eagle3_tools.plan.model.memory import ITEMSIZE, Pool
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import StepRows, target_work

PREFIXES = (1024, 8192, 32_768, 100_000, 200_000)
"""Tokens of the prefixes that a plan shows, as far as the model has positions."""
BOUND = "tuned"


@dataclass(frozen=True)
class HostMemory:
    """nbytes: of host memory for pages. pools: of the whole pair, as on one device: rows that
    several devices hold travel once, each carries its share. chunk: tokens a prefill takes."""

    nbytes: int
    pools: tuple[Pool, ...]
    shapes: Mapping[str, Shapes]
    kv_cache_dtype: str
    page_tokens: int
    chunk: int
    longest: int

    @property
    def token_bytes(self) -> int:
        """Of one token's KV in host memory, target and draft."""
        elements = sum(pool.elements * pool.layers for pool in self.pools)
        return elements * ITEMSIZE[self.kv_cache_dtype]

    @property
    def tokens(self) -> int:
        """Tokens that the host's memory holds."""
        return self.nbytes // (self.token_bytes * self.page_tokens) * self.page_tokens

    @property
    def prefixes(self) -> tuple[int, ...]:
        """Lengths to show."""
        return tuple(length for length in PREFIXES if length <= self.longest)

    def load_s(self, tokens: int, links: int) -> float:
        """Seconds that so many links to the host need."""
        return tokens * self.token_bytes / (links * HOST_LINK)

    def prefill_s(self, gpu: str, tokens: int) -> float:
        """Seconds of the chunks that compute a prefix of the target."""
        shapes = self.shapes[gpu]
        return sum(
            seconds(target_work(shapes.target, rows), shapes.gpu, BOUND)
            for rows in self._chunks(tokens)
        )

    def step_s(self, gpu: str) -> float:
        """Seconds of a step of one row: what an arrived page waits for at most, before the program
        that puts it in place."""
        return self.prefill_s(gpu, 1)

    def least_tokens(self, gpu: str) -> int:
        """Fewest tokens, in whole pages, that are sooner loaded than run: a prefix costs a step's
        wait and its copy in one case, its chunks in the other. The model's longest where it never
        is."""
        links, size = self.shapes[gpu].target.parallel.devices, self.page_tokens

        def pays(pages: int) -> bool:
            loading = self.step_s(gpu) + self.load_s(pages * size, links)
            return loading < self.prefill_s(gpu, pages * size)

        return size * (first_number(pays, 1, self.longest // size) or self.longest // size)

    def _chunks(self, tokens: int) -> Iterator[StepRows]:
        for start in range(0, tokens, self.chunk):
            count = min(self.chunk, tokens - start)
            yield StepRows(1, count, start + count / 2, ITEMSIZE[self.kv_cache_dtype])
