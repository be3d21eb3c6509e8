"""Place images in a prompt."""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_jax.vision.item import ImageItem, PlacedImage
from serve.images.errors import BadImage


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
