"""Decode an image in a sandbox (`serve.sandbox`)."""

import json
import signal
from collections.abc import Callable

from convert.images import count_pixels, read_image
from eagle3_jax.config.vision import PixelConfig, VisionConfig


def prepare(_: bytes) -> Callable[[bytes], bytes]:
    """Import everything that workers need; return `answer`."""
    from PIL import Image

    Image.preinit()
    import PIL.WebPImagePlugin  # noqa: F401

    return answer


def answer(question: bytes) -> bytes:
    """Read one image.

    `question` is a line of JSON with the arguments of `read_image` and `seconds_a_megapixel`, by
    which the CPU limit grows, then the file's bytes. Returns a line of JSON that describes the item
    or has the error, then the bytes of the patches.
    """
    line, _, data = question.partition(b"\n")
    asked = json.loads(line)
    pixel_config = PixelConfig(**asked["config"].pop("pixels"))
    config = VisionConfig(**asked["config"], pixels=pixel_config)
    background, max_pixels = asked["background"], asked["max_pixels"]
    try:
        pixels = count_pixels(data, max_pixels)
        left, _ = signal.getitimer(signal.ITIMER_PROF)
        signal.setitimer(signal.ITIMER_PROF, left + asked["seconds_a_megapixel"] * pixels / 1e6)
        item = read_image(
            data,
            config,
            exif=asked["exif"],
            background=background and tuple(background),
            max_pixels=max_pixels,
        )
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
