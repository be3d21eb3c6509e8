"""Makes bodies of a given size."""

from collections.abc import Callable

LIMIT = 16 * 2**20
MESSAGE = '{"role":"user","content":"hi"}'


def full(head: str, item: str, tail: str, size: int = LIMIT) -> bytes:
    """A body of `size` bytes: as many items, with commas between them, as fit."""
    count = (size - len(head) - len(tail)) // (len(item) + 1)
    return (head + ",".join([item] * count) + tail).encode()


def text(before: str, unit: str, after: str, size: int = LIMIT) -> bytes:
    """A body of `size` bytes with a long text in it."""
    return (before + unit * ((size - len(before) - len(after)) // len(unit)) + after).encode()


def keys(head: str, key: Callable[[int], str], count: int, tail: str) -> bytes:
    """A body with an object of so many keys."""
    return (head + ",".join(f'"{key(i)}":1' for i in range(1, count)) + tail).encode()
