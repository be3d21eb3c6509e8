"""Questions about pictures of shapes, with their answers, in memory and as files.

The files have MMStar's layout: image, question, answer.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from eagle3_tools.make_demo.pictures.picture import COLOURS, KINDS, Picture, pictures, png

FILE, IMAGES = "questions.jsonl", "images"


@dataclass(frozen=True)
class Question:
    """A question about a picture: its topic, text, and right answer."""

    topic: str
    text: str
    answer: str


def ask(rng: random.Random, topic: str, picture: Picture) -> Question:
    """Draw a question of a topic in one of its phrasings."""
    return Question(topic, *_ASK[topic](rng, picture))


def _number(rng: random.Random, picture: Picture) -> tuple[str, str]:
    """Ask for the number of shapes, or of a kind or colour, sometimes an absent one."""
    group = rng.choice(picture.groups)
    kind = rng.choice(KINDS) if rng.random() < 0.25 else group.kind
    colour = rng.choice(sorted(COLOURS)) if rng.random() < 0.25 else group.colour
    what, count = rng.choice(
        (
            ("shape", picture.count()),
            (kind, picture.count(kind=kind)),
            (f"{colour} shape", picture.count(colour=colour)),
            (f"{group.colour} {group.kind}", group.count),
        )
    )
    text = rng.choice(("How many {}s are there?", "How many {}s do you see?", "Count the {}s."))
    verb = "is" if count == 1 else "are"
    return text.format(what), f"There {verb} {count} {_plural(what, count)}."


def _colour(rng: random.Random, picture: Picture) -> tuple[str, str]:
    group = rng.choice(picture.groups)
    name, verb = _plural(group.kind, group.count), "is" if group.count == 1 else "are"
    text = rng.choice(
        ("What colour {} the {}?", "What color {} the {}?", "Which colour {} the {}?")
    )
    return text.format(verb, name), f"The {name} {verb} {group.colour}."


def _shape(rng: random.Random, picture: Picture) -> tuple[str, str]:
    group = rng.choice(picture.groups)
    text = rng.choice(("Which shape is {}?", "What shape is {}?", "What is {}?"))
    several = group.count > 1
    answer = f"The {_plural(group.kind, group.count)} {'are' if several else 'is'} {group.colour}."
    return text.format(group.colour), answer


def _describe(rng: random.Random, picture: Picture) -> tuple[str, str]:
    text = rng.choice(("Describe the picture.", "What do you see?", "What is in the picture?"))
    order = sorted(picture.groups, key=lambda group: KINDS.index(group.kind))
    parts = [f"{g.count} {g.colour} {_plural(g.kind, g.count)}" for g in order]
    return text, f"I see {' and '.join(parts)}."


def _plural(name: str, count: int) -> str:
    return name if count == 1 else f"{name}s"


_ASK: dict[str, Callable[[random.Random, Picture], tuple[str, str]]] = {
    "number": _number,
    "colour": _colour,
    "shape": _shape,
    "description": _describe,
}
TOPICS = tuple(_ASK)


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
