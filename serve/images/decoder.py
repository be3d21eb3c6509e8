"""Decode the images of requests in a sandbox, so that none delays other requests."""

import json
import time
from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.vision.item import ImageItem
from serve.images.errors import BadImage, ImagesBusy
from serve.images.fair_turns import FairTurns, NoRoomError
from serve.images.options import MIB, ImageOptions
from serve.images.remote import Run
from serve.sandbox.sandbox import BusyError, EndedError, Limits, Sandbox

SECONDS, SECONDS_A_MEGAPIXEL = 0.5, 0.15
"""CPU time per image, and per million pixels. The slowest valid files (a PNG or lossless WebP of
noise) took 0.1 s a million; a JPEG takes 0.03."""
QUICK_SECONDS = 0.25
"""Enough for a photo of ten million pixels."""
WALL_SECONDS = 60.0
QUICK_SLOTS, SLOW_SLOTS = 4, 2
"""Images that are decoded at a time."""
QUICK_WAITING, SLOW_WAITING = 64, 16
"""Images that may wait before more are refused."""
REFUSED_SECONDS, REFUSED_FILES = 600.0, 1024
"""Seconds that a refused file is remembered, and the number of remembered files."""
BASE_BYTES, BYTES_A_PIXEL = 256 * MIB, 24
"""Memory limit: a lossless WebP takes 20 bytes a pixel while it is decoded."""
BEHIND = 10
"""Niceness of slow decoding, lower priority than generation."""


class ImageDecoder:
    """A decoder of requests' images, which decodes quick images before slow ones.

    Each image first gets a little CPU time. If that is not enough, it is decoded again in a second
    queue at low priority, with time in proportion to its pixels. So hostile files collect in the
    second queue, and ordinary images do not wait for them. Clients take turns in both queues. A
    refused file is refused again for a while without decoding.

    Args:
        options: limits and decoding options.
        sandbox: of `serve.images.decode_process`.
        quick, slow: run blocking work in QUICK_SLOTS and SLOW_SLOTS threads; each waits for one
            image.
    """

    def __init__(self, options: ImageOptions, sandbox: Sandbox, quick: Run, slow: Run) -> None:
        memory = BASE_BYTES + BYTES_A_PIXEL * options.max_pixels
        self._options = options
        self._sandbox = sandbox
        self._queues = (
            _Queue(
                quick,
                FairTurns(QUICK_SLOTS, QUICK_WAITING),
                Limits(QUICK_SECONDS, memory, WALL_SECONDS),
                0.0,
            ),
            _Queue(
                slow,
                FairTurns(SLOW_SLOTS, SLOW_WAITING),
                Limits(SECONDS, memory, WALL_SECONDS, BEHIND),
                SECONDS_A_MEGAPIXEL,
            ),
        )
        self._refused = RefusedFiles()
        self._too_much = (
            f"decoding it takes more than {SECONDS:g} s of a processor and {SECONDS_A_MEGAPIXEL:g} "
            f"s a million pixels, or {memory // MIB} MiB: save it as a plain PNG or JPEG"
        )

    async def decode(
        self, data: bytes, config: VisionConfig, digest: bytes, client: str
    ) -> tuple[ImageItem, int]:
        """Decode a file; return its item and its number of pixels.

        `digest` identifies the file and its processing. The decoder takes a turn of `client`.
        Raises BadImage if the file is no image or exceeds the limits, ImagesBusy if too many images
        wait.
        """
        arguments: dict[str, Any] = {
            "config": asdict(config),
            "exif": self._options.exif,
            "background": self._options.background,
            "max_pixels": self._options.max_pixels,
        }
        try:
            for queue in self._queues:
                async with queue.turns.turn(client):
                    self._refused.check(digest)
                    try:
                        return await queue.run(partial(self._ask, arguments, data, queue))
                    except EndedError:
                        continue
            raise BadImage(self._too_much)
        except BadImage as error:
            self._refused.note(digest, f"{error}")
            raise
        except NoRoomError as error:
            message = "too many images wait to be decoded; send this one again later"
            raise ImagesBusy(message) from error
        except BusyError as error:
            raise ImagesBusy(f"the image was not decoded: {error}") from error

    def _ask(
        self, arguments: dict[str, Any], data: bytes, queue: "_Queue"
    ) -> tuple[ImageItem, int]:
        asked = json.dumps({**arguments, "seconds_a_megapixel": queue.seconds_a_megapixel}).encode()
        answer = self._sandbox.ask(asked + b"\n" + data, queue.limits)
        line, _, patches = answer.partition(b"\n")
        head = json.loads(line)
        if "error" in head:
            raise BadImage(head["error"])
        item = ImageItem(
            np.frombuffer(patches, np.uint8).reshape(head["patches"]),
            tuple(head["grid_thw"]),
            head["num_tokens"],
            bytes.fromhex(head["digest"]),
        )
        return item, head["pixels"]


@dataclass(frozen=True)
class _Queue:
    """Images that wait for one kind of thread; the CPU limit grows by `seconds_a_megapixel`."""

    run: Run
    turns: FairTurns
    limits: Limits
    seconds_a_megapixel: float


class RefusedFiles:
    """Recently refused files by digest, with the reason."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    def check(self, digest: bytes) -> None:
        """Raise BadImage for a file that was refused within REFUSED_SECONDS."""
        noted, why = self._found.get(digest, (-REFUSED_SECONDS, ""))
        if time.monotonic() < noted + REFUSED_SECONDS:
            raise BadImage(why)
        self._found.pop(digest, None)

    def note(self, digest: bytes, why: str) -> None:
        """Remember a file's first refusal, and forget the oldest file if there are too many."""
        self._found.setdefault(digest, (time.monotonic(), why))
        if len(self._found) > REFUSED_FILES:
            self._found.popitem(last=False)
