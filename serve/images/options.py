"""Image options of a server: the flags, under vLLM's names if it has them, and their values."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convert.files.json_object import parse_value

if TYPE_CHECKING:
    from convert.images import Colour

MIB, GIB = 2**20, 2**30
ANY_HOST = "*"
LIMIT, IO = "--limit-mm-per-prompt", "--media-io-kwargs"
IMAGES = ("image", "vision_chunk")
"""vLLM's name of images, and that of Kimi-K2.5's processor."""
OTHERS = ("video", "audio")
"""Media that are never accepted, so any limit on them holds."""
SIZES = {"count", "width", "height"}
"""Keys of vLLM's longer form; the sizes are hints for its profiling, which we do not have."""
DECODING = ("vllm", "moonshot")
WHITE = (255, 255, 255)


@dataclass(frozen=True)
class ImageOptions:
    """Image options of a server.

    `language_model_only` loads no vision part. `most` limits the images of a prompt; `max_bytes`
    and `max_pixels` each image before decoding. `exif`, `background`: see `read_image`. URLs are
    fetched from the hosts `domains`. Clients may name files in `local_path`. `cache_bytes` is the
    size of the cache of preprocessed images.
    """

    language_model_only: bool = False
    most: int = 128
    max_bytes: int = 20 * MIB
    max_pixels: int = 2**26
    exif: bool = True
    background: "Colour | None" = WHITE
    domains: tuple[str, ...] = ()
    local_path: Path | None = None
    cache_bytes: int = GIB

    @property
    def loads_vision(self) -> bool:
        """True if a checkpoint's vision part is needed."""
        return not self.language_model_only and self.most > 0


def read_image_options(flags: argparse.Namespace) -> ImageOptions:
    """Read the flags; ValueError, naming the flag, for invalid values."""
    for name in ("max_image_size", "max_image_pixels"):
        if not getattr(flags, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0")
    if not flags.mm_processor_cache_gb >= 0:
        raise ValueError("--mm-processor-cache-gb must be 0 or more")
    return ImageOptions(
        language_model_only=flags.language_model_only,
        most=_read_limit(flags.limit_mm_per_prompt),
        max_bytes=int(flags.max_image_size * MIB),
        max_pixels=flags.max_image_pixels,
        exif=flags.image_decoding == "vllm",
        background=_read_background(flags.media_io_kwargs, flags.image_decoding),
        domains=_read_domains(flags.allowed_media_domains),
        local_path=_read_directory(flags.allowed_local_media_path),
        cache_bytes=int(flags.mm_processor_cache_gb * GIB),
    )


def _read_limit(text: str | None) -> int:
    """Return the maximum number of images in a prompt."""
    if text is None:
        return ImageOptions.most
    counts = {kind: _count(kind, given) for kind, given in _object(LIMIT, text).items()}
    return min((counts[kind] for kind in IMAGES if kind in counts), default=ImageOptions.most)


def _count(kind: str, given: Any) -> int:
    if kind not in (*IMAGES, *OTHERS):
        raise ValueError(f"{LIMIT} has {kind!r}; there are {', '.join((*IMAGES, *OTHERS))}")
    if isinstance(given, Mapping):
        if kind in IMAGES and (unknown := sorted(given.keys() - SIZES)):
            raise ValueError(f"{LIMIT} {kind} has {unknown[0]!r}; there are {sorted(SIZES)}")
        given = given.get("count", ImageOptions.most)
    if type(given) is not int or given < 0:
        raise ValueError(f"{LIMIT} {kind} must be a number from 0 on; got {given!r:.100}")
    return given


def _read_background(text: str | None, decoding: str) -> "Colour | None":
    """Return the colour behind transparent images, None to drop transparency."""
    given = _object(IO, text) if text is not None else {}
    if unknown := sorted(given.keys() - {"image"}):
        raise ValueError(f"{IO} has {unknown[0]!r}; there is image, the only medium that is taken")
    options = given.get("image", {})
    known = {"image_mode": "RGB", "rgba_background_color": None}
    if not isinstance(options, Mapping) or options.keys() - known.keys():
        raise ValueError(f"{IO} image must be an object with {' or '.join(known)}")
    if options.get("image_mode", "RGB") != "RGB":
        raise ValueError(f"{IO} image_mode must be RGB, which the model takes")
    colour = options.get("rgba_background_color")
    if decoding == "moonshot":
        if colour is not None:
            raise ValueError(f"{IO} has a colour behind images; --image-decoding moonshot has none")
        return None
    return WHITE if colour is None else _colour(colour)


def _colour(given: Any) -> "Colour":
    parts = given if isinstance(given, list) else []
    if len(parts) != 3 or not all(type(part) is int and 0 <= part <= 255 for part in parts):
        raise ValueError(f"{IO} rgba_background_color must be three of 0..255; got {given!r:.100}")
    red, green, blue = parts
    return red, green, blue


def _read_domains(given: list[str]) -> tuple[str, ...]:
    for host in given:
        if not host.isascii() or not host or set(host) & set("/:@? "):
            raise ValueError(f"--allowed-media-domains: {host!r} is no name of a host")
    return tuple(host.lower() for host in given)


def _read_directory(given: Path | None) -> Path | None:
    if given is not None and not given.is_dir():
        raise ValueError(f"--allowed-local-media-path {given} is no directory")
    return given and given.resolve()


def _object(flag: str, text: str) -> dict[str, Any]:
    try:
        value = parse_value(text)
    except ValueError:
        # Try vLLM's older form of limits.
        pairs = [pair.partition("=") for pair in text.split(",")]
        value = {key: int(n) for key, _, n in pairs if n.isdecimal()}
        value = value if flag == LIMIT and len(value) == len(pairs) else None
    if not isinstance(value, dict):
        raise ValueError(f"{flag} must be a JSON object; got {text[:100]}")
    return value


def add_image_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group; those of the engine are fields of EngineConfig."""
    group, default = parser.add_argument_group("images"), ImageOptions()
    add = group.add_argument
    add("--language-model-only", action="store_true", help="load no vision, take no images")
    add(LIMIT, metavar="JSON", help=f'{{"image": N}}: images of one prompt; default {default.most}')
    add(
        "--max-image-size",
        type=float,
        default=default.max_bytes / MIB,
        metavar="MIB",
        help="larger image files (in MiB) are refused",
    )
    add(
        "--max-image-pixels",
        type=int,
        default=default.max_pixels,
        metavar="N",
        help="images of more are refused before they are decoded",
    )
    add(IO, metavar="JSON", help='{"image": {"rgba_background_color": [R, G, B]}}: behind images')
    add(
        "--image-decoding",
        choices=DECODING,
        default=DECODING[0],
        help="vllm: turned as EXIF says, transparency on a colour; moonshot: neither, as released",
    )
    _add_source_flags(group, default)
    _add_engine_flags(group)


def _add_source_flags(group: argparse._ArgumentGroup, default: ImageOptions) -> None:
    add = group.add_argument
    add(
        "--allowed-media-domains",
        nargs="+",
        default=[],
        metavar="HOST",
        help=f"fetch http(s) URLs of these hosts ({ANY_HOST}: of all); default: of none",
    )
    add(
        "--allowed-local-media-path",
        type=Path,
        metavar="DIR",
        help="clients may name files in it by file:// URLs; default: none",
    )
    add(
        "--mm-processor-cache-gb",
        type=float,
        default=default.cache_bytes / GIB,
        metavar="GIB",
        help="preprocessed images that are kept in the host's memory; 0: none",
    )


def _add_engine_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--mm-encoder-tp-mode",
        choices=("data", "weights"),
        help="data (the default): images are divided over devices that each hold the whole tower; "
        "weights: the tower is, and every device sees every image",
    )
    add(
        "--mm-enable-dp-encoder",
        action="store_const",
        const="data",
        dest="mm_encoder_tp_mode",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    add(
        "--mm-draft-embedding",
        choices=("pad", "target"),
        help="what drafts see of images: pad, the placeholder, as in vLLM (the default), or "
        "target, the target's rows, as in SGLang",
    )
    add(
        "--mm-encoder-cache-tokens",
        type=int,
        metavar="N",
        help="tokens of images whose features devices keep, the most that an image may have; "
        "default: those of a prefill chunk and of two of the largest images",
    )
