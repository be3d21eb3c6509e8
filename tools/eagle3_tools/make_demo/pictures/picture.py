"""Pictures of a few coloured shapes, drawn from a random generator."""

import io
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

KINDS = ("circle", "square", "triangle")
COLOURS = {
    "red": ((200, 255), (0, 60), (0, 60)),
    "green": ((0, 40), (140, 230), (0, 60)),
    "blue": ((0, 70), (0, 110), (180, 255)),
    "yellow": ((235, 255), (190, 255), (0, 70)),
}
"""Name -> the range of each of red, green and blue."""
MOST_SHAPES = 5
SIDE = 84
"""Pixels of the longer side, before enlargement."""
RADII = (7.0, 11.0)
GAP = 2.0
TURN = math.radians(12)
CORNERS = {"square": 4, "triangle": 3}

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Group:
    """Shapes of one kind and colour."""

    kind: str
    colour: str
    count: int


@dataclass(frozen=True)
class Shape:
    """One shape of a group, in pixels; `radius` is that of its (circumscribed) circle."""

    kind: str
    fill: Colour
    x: float
    y: float
    radius: float
    turn: float


@dataclass(frozen=True)
class Picture:
    """One or two groups of different kinds and colours; no two shapes touch.

    `enlarged` is the number of pixels drawn per unit of `width` and `height`.
    """

    groups: tuple[Group, ...]
    shapes: tuple[Shape, ...]
    width: int
    height: int
    background: Colour
    enlarged: int

    def count(self, *, kind: str | None = None, colour: str | None = None) -> int:
        """Count the shapes of a kind, of a colour, of both or all."""
        groups = (g for g in self.groups if kind in (None, g.kind) and colour in (None, g.colour))
        return sum(group.count for group in groups)


def pictures(split: str, seed: int | str) -> Iterator[Picture]:
    """Yield endless pictures, equal for equal arguments; 53 random bits separate the splits."""
    rng = random.Random(f"pictures/{split}/{seed}")
    while True:
        yield draw(rng)


def draw(rng: random.Random) -> Picture:
    """Draw a random picture."""
    groups = _groups(rng)
    while True:
        width, height = _size(rng)
        shapes = _placed(rng, groups, width, height)
        if shapes is not None:
            shade = rng.randint(220, 255)
            r, g, b = (min(255, shade + rng.randint(-6, 6)) for _ in range(3))
            return Picture(groups, shapes, width, height, (r, g, b), rng.choice((1, 1, 2, 3)))


def render(picture: Picture) -> "Image.Image":
    """Render the picture in RGB, without smoothed edges."""
    from PIL import Image, ImageDraw

    scale = picture.enlarged
    image = Image.new("RGB", (picture.width * scale, picture.height * scale), picture.background)
    canvas = ImageDraw.Draw(image)
    for shape in picture.shapes:
        x, y, radius = (scale * value for value in (shape.x, shape.y, shape.radius))
        if shape.kind == "circle":
            canvas.ellipse((x - radius, y - radius, x + radius, y + radius), fill=shape.fill)
        else:
            canvas.polygon(_corners(x, y, radius, shape), fill=shape.fill)
    return image


def png(picture: Picture) -> bytes:
    """Return the picture as a PNG file."""
    file = io.BytesIO()
    render(picture).save(file, "PNG")
    return file.getvalue()


def _groups(rng: random.Random) -> tuple[Group, ...]:
    total = rng.randint(1, MOST_SHAPES)
    number = 1 if total == 1 else rng.choice((1, 2, 2))
    first = rng.randint(1, total - 1) if number == 2 else total
    counts = (first, total - first)[:number]
    kinds, colours = rng.sample(KINDS, number), rng.sample(sorted(COLOURS), number)
    return tuple(Group(*group) for group in zip(kinds, colours, counts, strict=True))


def _size(rng: random.Random) -> tuple[int, int]:
    shorter = rng.choice((SIDE, rng.randint(SIDE * 3 // 4, SIDE)))
    return (SIDE, shorter) if rng.random() < 0.5 else (shorter, SIDE)


def _placed(
    rng: random.Random, groups: tuple[Group, ...], width: int, height: int
) -> tuple[Shape, ...] | None:
    """Place the shapes, or return None if there is no room."""
    shapes: list[Shape] = []
    for group in groups:
        for _ in range(group.count):
            red, green, blue = (rng.randint(*part) for part in COLOURS[group.colour])
            radius, turn = rng.uniform(*RADII), rng.uniform(-TURN, TURN)
            for _ in range(20):
                x, y = (rng.uniform(radius + 1, side - radius - 1) for side in (width, height))
                if all(math.dist((x, y), (s.x, s.y)) > radius + s.radius + GAP for s in shapes):
                    shapes.append(Shape(group.kind, (red, green, blue), x, y, radius, turn))
                    break
            else:
                return None
    return tuple(shapes)


def _corners(x: float, y: float, radius: float, shape: Shape) -> list[tuple[float, float]]:
    number = CORNERS[shape.kind]
    first = shape.turn - math.pi / 2 + (math.pi / 4 if number == 4 else 0)
    angles = (first + 2 * math.pi * i / number for i in range(number))
    return [(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles]
