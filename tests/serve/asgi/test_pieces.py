"""JSON in pieces: what it means, and that other work goes on between two of them."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from convert.text.json_pieces import PIECE_CHARS, JsonList, JsonNumbers, JsonText, json_pieces
from serve.asgi.sse import TURN_S, in_turns

NUMBERS = list(range(10_000))
LONG = 'a"\\\ud800\n' * PIECE_CHARS


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({}, {}),
        ({"a": [], "b": JsonList(())}, {"a": [], "b": []}),
        (
            [1, None, True, "é\ud800", {"a": {"b": 1.5}}],
            [1, None, True, "é\ud800", {"a": {"b": 1.5}}],
        ),
        ({"a": JsonText('{"b":[1]}')}, {"a": {"b": [1]}}),
        (JsonList({"a": n} for n in range(3)), [{"a": 0}, {"a": 1}, {"a": 2}]),
        ([JsonNumbers(NUMBERS), JsonNumbers(())], [NUMBERS, []]),
        ({"a": [LONG]}, {"a": [LONG]}),
    ],
)
def test_pieces_are_the_json_of_the_value(value: Any, expected: Any) -> None:
    async def written() -> bytes:
        return b"".join([piece async for piece in in_turns(json_pieces(value))])

    assert json.loads(asyncio.run(written())) == expected


def test_answers_take_turns_and_others_come_between() -> None:
    """Nothing is made before its turn: pieces of two answers alternate, beside a third task."""
    made: list[str] = []

    def texts(name: str) -> Iterator[str]:
        for _ in range(20):
            made.append(name)
            yield "a" * PIECE_CHARS

    async def write(name: str) -> None:
        async for piece in in_turns(texts(name)):
            assert len(piece) in (0, PIECE_CHARS)

    async def tick() -> None:
        while len(made) < 40:
            made.append("tick") if made[-1] != "tick" else None
            await asyncio.sleep(0)

    async def all_of_them() -> None:
        made.append("tick")
        await asyncio.gather(write("first"), write("second"), tick())

    asyncio.run(asyncio.wait_for(all_of_them(), 1000 * TURN_S))
    answers = [name for name in made if name != "tick"]
    assert abs(answers[:10].count("first") - 5) <= 1
