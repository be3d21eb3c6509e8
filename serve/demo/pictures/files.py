"""Write pictures and questions as files in MMStar's layout: image, question, answer."""

import json
import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from serve.demo.pictures.picture import Picture, pictures, png
from serve.demo.pictures.questions import TOPICS, Question, ask

FILE, IMAGES = "questions.jsonl", "images"


class Asked(NamedTuple):
    """A picture and a question about it."""

    picture: Picture
    question: Question


def held_out(seed: int = 0) -> Iterator[Asked]:
    """Yield endless questions about held-out pictures, cycling through the topics."""
    rng = random.Random(f"questions/held_out/{seed}")
    for picture, topic in zip(pictures("held_out", seed), cycle(TOPICS), strict=False):
        yield Asked(picture, ask(rng, topic, picture))


def write_questions(directory: Path, count: int, seed: int = 0) -> None:
    """Write the first `count` of `held_out`: PNG files, and a line of JSON for each."""
    (directory / IMAGES).mkdir(parents=True, exist_ok=True)
    lines = list[str]()
    for number, (picture, question) in zip(range(count), held_out(seed), strict=False):
        image = f"{IMAGES}/{number:04}.png"
        (directory / image).write_bytes(png(picture))
        entry = {"image": image, "question": question.text, "answer": question.answer}
        lines.append(json.dumps({"category": question.topic, **entry}) + "\n")
    (directory / FILE).write_text("".join(lines), encoding="utf-8")
