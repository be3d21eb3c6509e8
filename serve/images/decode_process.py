"""Decode an image in a process of its own; see `serve.limited`."""

import json
import pickle
import signal
from collections.abc import Callable

from convert.images.decode import count_pixels
from convert.images.read import read_image

SECONDS, SECONDS_A_MEGAPIXEL = 0.5, 0.15
"""Time of a processor for any image, and for each million of its pixels. The slowest sound files (a
PNG or lossless WebP of noise) took 0.1 s a million; a JPEG takes 0.03."""


def prepare(_: bytes) -> Callable[[bytes], bytes]:
    """Imports all that workers need."""
    from PIL import Image

    Image.preinit()
    import PIL.WebPImagePlugin  # noqa: F401

    return answer


def answer(question: bytes) -> bytes:
    """Answers pickled arguments of `read_image`, and whether the time grows with the image, with a
    line of JSON, then the patches' bytes."""
    arguments, in_proportion = pickle.loads(question)
    try:
        pixels = count_pixels(arguments["data"], arguments["max_pixels"])
        if in_proportion:
            seconds = SECONDS + SECONDS_A_MEGAPIXEL * pixels / 1e6
            signal.setitimer(signal.ITIMER_PROF, seconds)
        item = read_image(**arguments)
    except ValueError as error:
        return json.dumps({"error": str(error)}).encode() + b"\n"
    head = {
        "pixels": pixels,
        "patches": item.patches.shape,
        "grid_thw": item.grid_thw,
        "num_tokens": item.num_tokens,
        "digest": item.digest.hex(),
    }
    return json.dumps(head).encode() + b"\n" + item.patches.tobytes()
