"""Batches of questions about generated pictures, each a function of split, seed and step."""

import random
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import jax
import numpy as np

from convert import Tokenizer
from convert.images import cut, sizes_of
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.training.packing import Sample, padded
from eagle3_jax.vision import packing
from eagle3_jax.vision.item import ImageItem
from eagle3_tools.make_demo.corpus.conversation import Message, user
from eagle3_tools.make_demo.pictures.picture import Picture, pictures, render
from eagle3_tools.make_demo.pictures.questions import TOPICS, Question, ask
from eagle3_tools.make_demo.pictures.recipe import (
    GRID,
    IMAGE_TOKENS,
    PATCH,
    PLACEHOLDER,
    ROW_LENGTH,
    ROWS,
    SHARES,
    TARGET,
    VISION,
)
from eagle3_tools.make_demo.training.vision import ImageTextBatch


class PictureBatches:
    """Endless batches of new pictures and questions, with a position that can be saved."""

    def __init__(self, tokenizer: Tokenizer, seed: int, split: str = "train") -> None:
        self._make, self._seed, self._split = sample_maker(tokenizer), seed, split
        self._order, self._step = token_order(), 0

    def __iter__(self) -> "PictureBatches":
        return self

    def __next__(self) -> ImageTextBatch:
        place = f"{self._seed}/{self._step}"
        self._step += 1
        rng = random.Random(f"questions/{self._split}/{place}")
        shown = list(islice(pictures(self._split, place), ROWS))
        topics = rng.choices(TOPICS, SHARES, k=ROWS)
        asked = (ask(rng, topic, picture) for topic, picture in zip(topics, shown, strict=True))
        rows = [padded(self._make(question), ROW_LENGTH) for question in asked]
        text = jax.tree.map(lambda *parts: np.concatenate(parts), *rows)
        return ImageTextBatch(text, np.stack([patches_of(p)[self._order] for p in shown]))

    def get_state(self) -> dict[str, Any]:
        """Return the number of the next batch."""
        return {"step": self._step}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue with a saved batch number."""
        self._step = state["step"]


def sample_maker(tokenizer: Tokenizer) -> Callable[[Question], Sample]:
    """Return a function from questions to token ids, as the server reads and the model answers."""
    encode, end = cache(tokenizer.encode), TARGET.eos_token_ids[0]

    @cache
    def prompt(text: str) -> list[int]:
        ids = tokenizer.encode_chat(asked_of_picture(text))
        at = ids.index(PLACEHOLDER)
        return [*ids[:at], *[PLACEHOLDER] * IMAGE_TOKENS, *ids[at + 1 :]]

    def sample(question: Question) -> Sample:
        asked, answer = prompt(question.text), [*encode(question.answer), end]
        return Sample(asked + answer, [False] * len(asked) + [True] * len(answer))

    return sample


def asked_of_picture(text: str) -> list[Message]:
    """Return a chat that shows a picture and asks `text`."""
    return [user([{"type": "image"}, {"type": "text", "text": text}])]


def patches_of(picture: Picture) -> np.ndarray:
    """Return patches as `convert.read_image`, row by row: uint8 [GRID * GRID, 3, p, p]."""
    image = render(picture)
    sizes = sizes_of(*image.size, VISION.pixels.limit(), VISION)
    return cut(image, sizes, PATCH).reshape(-1, 3, PATCH, PATCH)


def picture_places() -> PatchPositions:
    """Return the places of one picture's patches, grouped by token."""
    item = ImageItem(np.zeros((GRID**2, 3, PATCH, PATCH), np.uint8), (1, GRID, GRID), IMAGE_TOKENS)
    return PatchPositions(*(column[: GRID**2] for column in packing.pack([item], VISION).places))


def token_order() -> np.ndarray:
    """Return the row-by-row numbers of a picture's patches in the order of `picture_places`."""
    places = picture_places()
    return np.asarray(places.row) * GRID + np.asarray(places.column)
