"""Which KV pages are free. Host bookkeeping; page 0 is the device's scratch page."""

from eagle3_jax.cache import SCRATCH_PAGE


class PagePool:
    """A free list of page ids.

    A page freed while rounds are in flight may be handed out at once: programs run in the order
    they were dispatched, so the new owner's writes come after any the old owner still makes.
    """

    def __init__(self, num_pages: int):
        self.total = num_pages - 1
        self._free = [page for page in range(num_pages) if page != SCRATCH_PAGE][::-1]

    @property
    def free(self) -> int:
        """Pages nobody owns."""
        return len(self._free)

    def take(self, count: int) -> list[int] | None:
        """`count` page ids, or None (and nothing taken) when there are not enough."""
        if count > len(self._free):
            return None
        return [self._free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        """Returns pages; each must have been taken exactly once."""
        self._free.extend(reversed(pages))
        assert len(self._free) <= self.total, "a page was returned twice"
