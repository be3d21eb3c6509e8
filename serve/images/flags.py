"""Flags of images, under vLLM's names if it has them."""

import argparse
from pathlib import Path

from serve.images.options import ANY_HOST, DECODING, GIB, IO, LIMIT, MIB, ImageOptions


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
