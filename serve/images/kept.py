"""Cache preprocessed images: those that requests hold, and those for future requests."""

import threading
from collections import OrderedDict
from weakref import WeakValueDictionary

from eagle3_jax.vision.item import ImageItem
from serve.images.errors import ImagesBusy

MOST_HELD = 4 * 2**30
"""Maximum bytes of patches that running requests hold in addition to the cache."""


class KeptImages:
    """Images by the digest of their files and processing; the least recently used are evicted.

    Images held by requests are found too, even if evicted, so that each is in memory once.
    """

    def __init__(self, most_kept: int, most_held: int = MOST_HELD) -> None:
        self._most_kept, self._most_held = most_kept, most_held
        self._kept: OrderedDict[bytes, ImageItem] = OrderedDict()
        self._held: WeakValueDictionary[bytes, ImageItem] = WeakValueDictionary()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> ImageItem | None:
        """Return the image, if it is in memory."""
        with self._lock:
            item = self._held.get(digest)
            if item is not None:
                self._keep(item)
            return item

    def put(self, item: ImageItem) -> ImageItem:
        """Store an image; return the one in memory, maybe another request's. ImagesBusy if full."""
        with self._lock:
            if (known := self._held.get(item.digest)) is not None:
                return known
            held = sum(one.patches.nbytes for one in self._held.values())
            if held + item.patches.nbytes > self._most_kept + self._most_held:
                raise ImagesBusy(
                    f"requests under way hold {held} bytes of images; send this one again later"
                )
            self._held[item.digest] = item
            self._keep(item)
            return item

    def _keep(self, item: ImageItem) -> None:
        if item.digest not in self._kept:
            self._kept[item.digest] = item
            self._kept_bytes += item.patches.nbytes
        self._kept.move_to_end(item.digest)
        while self._kept_bytes > self._most_kept:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.patches.nbytes
