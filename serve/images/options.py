"""Image options of a server, under vLLM's names if it has them."""

from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convert.command_line.options import COUNT, POSITIVE_OR_0, json_object, option, values_of

if TYPE_CHECKING:
    from convert.images import Colour

MIB, GIB = 2**20, 2**30
ANY_HOST = "*"
LIMIT, IO = "--limit-mm-per-prompt", "--media-io-kwargs"
MOST = 128
WHITE = (255, 255, 255)
IMAGES = ("image", "vision_chunk")
"""vLLM's name of images, and that of Kimi-K2.5's processor."""
OTHERS = ("video", "audio")
"""Media that are never accepted, so any limit on them holds."""
SIZES = {"count", "width", "height"}
"""Keys of vLLM's longer form; the sizes are hints for its profiling, which we do not have."""


def _read_limit(text: str) -> int:
    """Return the maximum number of images in a prompt."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if all(number.isdecimal() for _, _, number in pairs):  # vLLM's older form, image=2
        given: Mapping[str, Any] = {kind: int(number) for kind, _, number in pairs}
    else:
        given = json_object(text)
    counts = {kind: _count(kind, value) for kind, value in given.items()}
    return min((counts[kind] for kind in IMAGES if kind in counts), default=MOST)


def _count(kind: str, given: Any) -> int:
    if kind not in (*IMAGES, *OTHERS):
        raise ArgumentTypeError(f"has {kind!r}; there are {', '.join((*IMAGES, *OTHERS))}")
    if isinstance(given, Mapping):
        if kind in IMAGES and (unknown := sorted(given.keys() - SIZES)):
            raise ArgumentTypeError(f"{kind} has {unknown[0]!r}; there are {sorted(SIZES)}")
        given = given.get("count", MOST)
    if type(given) is not int or given < 0:
        raise ArgumentTypeError(f"{kind} must be a number from 0 on; got {given!r:.100}")
    return given


def _read_background(text: str) -> "Colour | None":
    """Return the colour behind transparent images, None if none is given."""
    given = json_object(text)
    if unknown := sorted(given.keys() - {"image"}):
        raise ArgumentTypeError(f"has {unknown[0]!r}; there is image, the only medium accepted")
    options = given.get("image", {})
    known = {"image_mode", "rgba_background_color"}
    if not isinstance(options, Mapping) or options.keys() - known:
        raise ArgumentTypeError(f"image must be an object with {' or '.join(sorted(known))}")
    if options.get("image_mode", "RGB") != "RGB":
        raise ArgumentTypeError("image_mode must be RGB, which the model takes")
    colour = options.get("rgba_background_color")
    if colour is None:
        return None
    parts = colour if isinstance(colour, list) else []
    if len(parts) != 3 or not all(type(part) is int and 0 <= part <= 255 for part in parts):
        raise ArgumentTypeError(
            f"rgba_background_color must be three of 0..255; got {colour!r:.100}"
        )
    red, green, blue = parts
    return red, green, blue


def _host(text: str) -> str:
    if not text.isascii() or not text or set(text) & set("/:@? "):
        raise ArgumentTypeError(f"must be names of hosts, without scheme and port; got {text!r}")
    return text.lower()


def _directory(text: str) -> Path:
    try:
        if Path(text).is_dir():
            return Path(text).resolve()
    except OSError as error:
        raise ArgumentTypeError(f"can't read {text:.100}: {error.strerror}") from error
    raise ArgumentTypeError(f"must be a directory; got {text}")


@dataclass(frozen=True)
class ImageOptions:
    """Image options of a server.

    `most` limits the images of a prompt; `max_bytes` and `max_pixels` each image before decoding.
    `exif`, `background`: see `read_image`. `cache_bytes` is the size of the cache of preprocessed
    images.
    """

    language_model_only: bool = option(
        "--language-model-only", "load no vision part, accept no images"
    )
    most: int = option(
        f"{LIMIT} JSON",
        f'{{"image": N}}: images of one prompt; default {MOST}',
        _read_limit,
        default=MOST,
    )
    max_bytes: int = option(
        "--max-image-size MIB", "refuse larger image files (in MiB)", default=20 * MIB, unit=MIB
    )
    max_pixels: int = option(
        "--max-image-pixels N",
        "refuse images of more pixels before they are decoded",
        COUNT,
        default=2**26,
    )
    exif: bool = True
    background: "Colour | None" = option(
        f"{IO} JSON",
        '{"image": {"rgba_background_color": [R, G, B]}}: colour behind transparent images',
        _read_background,
        default=WHITE,
        unset=True,
    )
    domains: tuple[str, ...] = option(
        "--allowed-media-domains HOST",
        f"hosts whose http(s) URLs are fetched ({ANY_HOST}: all); default: none",
        _host,
        default=(),
        nargs="+",
    )
    local_path: Path | None = option(
        "--allowed-local-media-path DIR",
        "files that clients may name by file:// URLs; default: none",
        _directory,
    )
    cache_bytes: int = option(
        "--mm-processor-cache-gb GIB",
        "host memory for preprocessed images; 0: none",
        POSITIVE_OR_0,
        default=GIB,
        unit=GIB,
    )

    @property
    def loads_vision(self) -> bool:
        """True if a checkpoint's vision part is needed."""
        return not self.language_model_only and self.most > 0


@dataclass(frozen=True)
class DecodingFlags:
    """The rule of decoding images, which sets `exif` and `background`."""

    image_decoding: str = option(
        "--image-decoding",
        "vllm: turn images as EXIF says, replace transparency by a colour; moonshot: neither, as "
        "released",
        default="vllm",
        choices=("vllm", "moonshot"),
    )


@dataclass(frozen=True)
class ImageEngineFlags:
    """Options of EngineConfig for images; those that are not given are None."""

    mm_encoder_tp_mode: str | None = option(
        "--mm-encoder-tp-mode",
        "data (the default): divide images over devices that each hold the whole vision tower; "
        "weights: divide the tower, and every device processes every image",
        choices=("data", "weights"),
    )
    mm_enable_dp_encoder: str = option(
        "--mm-enable-dp-encoder",
        default=SUPPRESS,
        action="store_const",
        const="data",
        dest="mm_encoder_tp_mode",
    )
    mm_draft_embedding: str | None = option(
        "--mm-draft-embedding",
        "draft input at images: pad, the placeholder, as in vLLM (the default), or target, the "
        "target's rows, as in SGLang",
        choices=("pad", "target"),
    )
    mm_encoder_cache_tokens: int | None = option(
        "--mm-encoder-cache-tokens N",
        "image tokens whose features devices keep, the maximum of one image; default: those of a "
        "prefill chunk and of two of the largest images",
        int,
    )


TABLES = (ImageOptions, DecodingFlags, ImageEngineFlags)


def read_image_options(flags: Namespace) -> ImageOptions:
    """Read the tables; ValueError, naming the flags, for values that contradict each other."""
    options = ImageOptions(**values_of(ImageOptions, flags))
    if flags.image_decoding == "vllm":
        return options
    if flags.background is not None:
        raise ValueError(f"{IO} has a colour behind images; --image-decoding moonshot has none")
    return replace(options, exif=False, background=None)
