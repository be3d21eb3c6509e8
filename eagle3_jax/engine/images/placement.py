"""Validation of the images of a prompt and their positions."""

from itertools import pairwise

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.images.encoder_cache import EncoderCache
from eagle3_jax.engine.request import Request
from eagle3_jax.vision.item import ImageItem, PlacedImage
from eagle3_jax.vision.packing import check_item

DIGEST_BYTES = 32


def check_images(
    request: Request, cache: EncoderCache | None, exact_chunk: int | None = None
) -> None:
    """Raise ValueError for images that cannot run or whose positions are wrong.

    `exact_chunk` is the chunk size in exact mode, where images cannot shorten chunks. A placeholder
    outside of images is an ordinary token.
    """
    if not request.images:
        return
    if cache is None:
        raise ValueError("this engine has no vision model: its requests can have no images")
    vision, capacity = cache.layout.vision, cache.layout.capacity
    for image in request.images:
        _check_item(image.item, vision, capacity)
        _check_place(image, request.prompt_ids, vision.media_placeholder_token_id)
    for before, after in pairwise(request.images):
        if after.start < before.end:
            raise ValueError(
                f"images must be in order and apart: one ends at {before.end}, the next begins at "
                f"{after.start}"
            )
    if exact_chunk is not None:
        _check_grid(request, cache, exact_chunk)


def _check_grid(request: Request, cache: EncoderCache, chunk: int) -> None:
    for start in range(0, len(request.prompt_ids), chunk):
        if cache.chunk_end(request.images, start, start + chunk) < start + chunk:
            raise ValueError(
                f"images that {chunk} tokens from {start} touch have more tokens together than are "
                f"kept (mm_encoder_cache_tokens {cache.layout.capacity}), and exact mode cuts "
                "prompts nowhere else: send smaller images, or fewer"
            )


def _check_item(item: ImageItem, vision: VisionConfig, most_tokens: int) -> None:
    check_item(item, vision)
    frames, rows, columns = item.grid_thw
    if frames != 1:
        raise ValueError(f"requests take images of one frame, got one of {frames}")
    if item.num_tokens != rows * columns // vision.token_patches:
        raise ValueError(
            f"an image of {rows} x {columns} patches has {rows * columns // vision.token_patches} "
            f"tokens, got num_tokens={item.num_tokens}"
        )
    if item.num_tokens > most_tokens:
        raise ValueError(
            f"an image may have {most_tokens} tokens here (mm_encoder_cache_tokens), got one of "
            f"{item.num_tokens}: send a smaller one"
        )
    if len(item.digest) != DIGEST_BYTES:
        raise ValueError(
            f"an image's digest must have {DIGEST_BYTES} bytes, because its KV is found by it; got "
            f"{len(item.digest)}"
        )


def _check_place(image: PlacedImage, prompt_ids: list[int], placeholder: int) -> None:
    place = prompt_ids[image.start : image.end] if image.start >= 0 else []
    if place != [placeholder] * image.item.num_tokens:
        raise ValueError(
            f"an image's {image.item.num_tokens} positions from {image.start} must hold the "
            f"placeholder {placeholder}"
        )
