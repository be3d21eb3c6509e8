"""Read the images of a request into engine inputs, and place them in its prompt."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from weakref import WeakValueDictionary

from convert.images import digest_of
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.item import ImageItem, PlacedImage
from serve.images.decoder import ImageDecoder
from serve.images.errors import BadImage, ImagesBusy, NoneTaken
from serve.images.options import ImageOptions
from serve.images.remote import Fetcher, Run
from serve.images.sources import ImageSource, Loader, data_url

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


NO_VISION = "this model takes no images: its checkpoint has no vision"
Items = Mapping[ImageSource, ImageItem]
LOW_SIDE = 512
"""Side in pixels: `detail` low shrinks to the patches of such a square, as at OpenAI."""
DECODED = 8
"""Pixels that may be decoded for one request, in multiples of one image's limit."""


class NoImages:
    """Reader for servers without images; `why` is the client's error message."""

    takes = False
    placeholder = -1

    def __init__(self, why: str = NO_VISION) -> None:
        self._why = why

    async def read(self, sources: Sequence[ImageSource], client: str = "") -> Items:
        """Return no images; NoneTaken if there are sources."""
        if sources:
            raise NoneTaken(self._why)
        return {}


class ImageReader:
    """A reader of images for a vision model; `run` does short blocking work in threads."""

    takes = True

    def __init__(
        self,
        config: VisionConfig,
        options: ImageOptions,
        run: Run,
        fetcher: Fetcher,
        decoder: ImageDecoder,
    ) -> None:
        self.placeholder = config.media_placeholder_token_id
        self._config, self._options, self._run = config, options, run
        self._low = _of_low_detail(config)
        self._loader = Loader(options, run, fetcher)
        self._decoder = decoder
        self._kept = KeptImages(options.cache_bytes)

    async def read(self, sources: Sequence[ImageSource], client: str = "") -> Items:
        """Read the images of a client's prompt, each distinct source once.

        Raises BadImage, which names the image, and ImagesBusy.
        """
        self.check_number(len(sources))
        found: dict[ImageSource, ImageItem] = {}
        left = DECODED * self._options.max_pixels
        for number, source in enumerate(sources, 1):
            if source in found:
                continue
            try:
                found[source], decoded = await self._read(source, client)
            except ValueError as error:
                raise BadImage(f"image {number}: {error}") from error
            if (left := left - decoded) < 0:
                most = DECODED * self._options.max_pixels
                raise BadImage(f"the images of a prompt may have {most} pixels together")
        return found

    def check_number(self, count: int) -> None:
        """Raise BadImage for more images than a prompt may have."""
        if count > (most := self._options.most):
            limit = f"a prompt may have {most} images (--limit-mm-per-prompt)"
            raise BadImage(f"{limit}; got {count}")

    async def as_data(self, source: ImageSource) -> str:
        """Return an image as a data URL; raises BadImage and ImagesBusy."""
        data = await self._loader.load(source)
        return await self._run(partial(data_url, data))

    async def _read(self, source: ImageSource, client: str) -> tuple[ImageItem, int]:
        """Return an image and the number of pixels decoded for it, 0 if it was in memory."""
        data = await self._loader.load(source)
        config = self._low if source.detail == "low" else self._config
        exif, background = self._options.exif, self._options.background
        digest = await self._run(
            partial(digest_of, [data], config, exif=exif, background=background)
        )
        if (item := self._kept.get(digest)) is not None:
            return item, 0
        item, pixels = await self._decoder.decode(data, config, digest, client)
        return self._kept.put(item), pixels


def _of_low_detail(config: VisionConfig) -> VisionConfig:
    limit = min(config.pixels.in_patch_limit, (LOW_SIDE // config.patch_size) ** 2)
    return replace(config, pixels=replace(config.pixels, in_patch_limit=limit))


@dataclass(frozen=True)
class Prompt:
    """Token ids, with the images among them."""

    ids: list[int]
    images: tuple[PlacedImage, ...] = ()


def place(ids: Sequence[int], items: Sequence[ImageItem], placeholder: int) -> Prompt:
    """Expand each placeholder to as many as its image has tokens, in order.

    `ids` is a rendered chat in which no user's text is a placeholder. Raises BadImage if the
    numbers of placeholders and images differ.
    """
    places = [position for position, token in enumerate(ids) if token == placeholder]
    if len(places) != len(items):
        raise BadImage(
            f"the chat template has {len(places)} places for {len(items)} images: it is not made "
            "for images, or leaves messages out"
        )
    expanded: list[int] = []
    placed: list[PlacedImage] = []
    done = 0
    for position, item in zip(places, items, strict=True):
        expanded += ids[done:position]
        placed.append(PlacedImage(item, len(expanded)))
        expanded += [placeholder] * item.num_tokens
        done = position + 1
    return Prompt([*expanded, *ids[done:]], tuple(placed))
