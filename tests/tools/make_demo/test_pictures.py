"""Pictures show what they say: shapes are counted again from pixels, and every answer follows."""

import colorsys
import re
from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
from scipy import ndimage

from eagle3_tools.make_demo.pictures.picture import MOST_SHAPES, Picture, pictures, png, render
from eagle3_tools.make_demo.pictures.questions import TOPICS, ask

HUES = {"red": 0.0, "yellow": 1 / 6, "green": 1 / 3, "blue": 2 / 3}
AREAS = {"circle": np.pi, "square": 2.0, "triangle": 3 * np.sqrt(3) / 4}
"""Over the square of the distance of the farthest point from the centre."""


def seen(picture: Picture) -> Counter[tuple[str, str]]:
    """Colours and kinds of the areas of strong colour."""
    pixels = np.asarray(render(picture))
    colourful = np.ptp(pixels.astype(int), axis=-1) > 70
    areas = np.zeros(colourful.shape, np.int32)
    ndimage.label(colourful, np.ones((3, 3)), areas)
    found: Counter[tuple[str, str]] = Counter()
    for number in range(1, areas.max() + 1):
        where = np.argwhere(areas == number)
        reach = np.linalg.norm(where - where.mean(0), axis=1).max() ** 2
        kind = min(AREAS, key=lambda kind: abs(AREAS[kind] - len(where) / reach))
        hue, _, _ = colorsys.rgb_to_hsv(*pixels[tuple(where[0])] / 255)
        colour = min(HUES, key=lambda name: min(abs(hue - HUES[name]), abs(hue - 1 - HUES[name])))
        found[colour, kind] += 1
    return found


def test_pixels_show_the_shapes_that_are_meant_and_answers_follow_from_them() -> None:
    totals, rng, answers = set[int](), Random(0), set[str]()
    for picture in islice(pictures("held_out", 5), 60):
        inventory = seen(replace(picture, enlarged=4))
        assert inventory == {(group.colour, group.kind): group.count for group in picture.groups}
        assert seen(picture).total() == picture.count()
        totals.add(picture.count())
        for topic in TOPICS:
            question = ask(rng, topic, picture)
            answers.add(question.answer)
            assert follows(question.text, question.answer, inventory), (question, inventory)
    assert totals == set(range(1, MOST_SHAPES + 1)) and len(answers) > 30


def test_a_seed_and_a_split_are_other_pictures() -> None:
    first, again = (list(islice(pictures("held_out", 5), 20)) for _ in range(2))
    assert first == again and png(first[0]) == png(again[0])
    files = {png(picture) for picture in first}
    for split, seed in (("train", 5), ("held_out", 6)):
        assert not files & {png(picture) for picture in islice(pictures(split, seed), 200)}


def follows(text: str, answer: str, inventory: Counter[tuple[str, str]]) -> bool:
    if stated := re.fullmatch(r"There (is|are) (\d) (.+?)s?\.", answer):
        verb, number, what = stated.groups()
        counted = sum(n for group, n in inventory.items() if matches(what, *group))
        return what in text and (verb == "is") == (counted == 1) and int(number) == counted
    if stated := re.fullmatch(r"The (\w+?)(s?) (is|are) (\w+)\.", answer):
        kind, several, verb, colour = stated.groups()
        same = {group for group in inventory if kind in group or colour in group}
        number = inventory[colour, kind]
        asked = kind in text or colour in text
        return (
            asked and same == {(colour, kind)} and bool(several) == (verb == "are") == (number > 1)
        )
    stated = re.findall(r"(\d) (\w+) (\w+?)s?\b", answer)
    return {(colour, kind): int(number) for number, colour, kind in stated} == inventory


def matches(what: str, colour: str, kind: str) -> bool:
    return set(what.split()) <= {colour, kind, "shape"}
