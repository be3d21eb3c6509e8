"""A producer's pages go out under the name that holds them, or not at all."""

import numpy as np
import pytest
from test_killed_ends import PAGES, SIZE, SLOTS, Store, pulled

from eagle3_jax.engine.kv.tiers.exports import Export
from serve.kv_transfer.producer import PageServer

LOST = 5
"""The page that is read when its name ends."""
FOREIGN = 200


class ReusedStore(Store):
    """Once page LOST is to be read its name ends, and somebody else's page is in its slot."""

    server: PageServer
    ends_by: str

    def bytes_of(self, slot: int) -> np.ndarray:
        if slot != LOST:
            return super().bytes_of(slot)
        if self.ends_by == "acknowledgement":
            self.server.forget("a", acknowledged=True)
        elif self.ends_by == "expiry":
            self.server._deadlines["a"] = 0.0
            self.server._expire()
        else:
            self.server.offer(Export("a", []))
        return np.full(SIZE, FOREIGN, np.uint8)


@pytest.mark.parametrize("ends_by", ["acknowledgement", "expiry", "its pages were spoiled"])
def test_a_page_whose_name_ended_while_it_was_read_is_not_sent(ends_by: str) -> None:
    """Its checksum would be right: nobody else could tell that it is another's."""
    store, taker = ReusedStore(), Store()
    server = store.server = PageServer(("127.0.0.1", 0), store, "f", 60.0, lambda name: None)
    store.ends_by = ends_by
    server.announce("a")
    server.offer(Export("a", SLOTS))
    ended = pulled(taker, server.address[1], lambda: None)
    assert ended == {slot: slot < LOST for slot in range(PAGES)}
    assert all((page == slot).all() for slot, page in taker.filled.items())
    server.close()
