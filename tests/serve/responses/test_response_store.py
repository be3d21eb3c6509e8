"""What a store of responses keeps, whatever comes."""

import json
import random

import pytest

from serve.asgi.errors import ApiError
from serve.responses.store import MOST_BEHIND, ResponseStore, Turn


def turn(name: str, size: int = 10, previous: Turn | None = None) -> Turn:
    return Turn(name, b"b" * size, b"[]", b"[]", previous)


def test_a_store_is_bounded_and_counts_what_it_keeps_alive_once() -> None:
    """After any of 500 operations the bytes are those of all turns that can be reached."""
    rng = random.Random(0)
    store = ResponseStore(most_entries=8, most_bytes=400)
    held: dict[str, Turn] = {}
    names = [str(n) for n in range(24)]
    for n in range(500):
        name = rng.choice(names)
        try:
            if rng.random() < 0.2:
                store.delete(b"", name)
            else:
                previous = store.get(b"", rng.choice(names)) if rng.random() < 0.7 else None
                held[str(n)] = turn(str(n), rng.randrange(100), previous)
                store.put(b"", held[str(n)])
                names[rng.randrange(len(names))] = str(n)
        except ApiError as error:
            assert error.status == 404
        alive: set[Turn] = set()
        for kept in store._turns.values():
            alive |= set(kept.conversation())
        assert store.num_bytes == sum(one.size for one in alive) <= 400
        assert len(store) <= 8


def test_the_turn_used_longest_ago_makes_room() -> None:
    store = ResponseStore(most_entries=2)
    for name in "abc":
        store.put(b"", turn(name))
        if name == "b":
            store.get(b"", "a")
    assert store.get(b"", "a") and store.get(b"", "c")
    with pytest.raises(ApiError):
        store.get(b"", "b")


def test_a_conversation_outlives_the_turns_it_goes_on_from() -> None:
    store = ResponseStore()
    first = turn("a")
    second = turn("b", previous=first)
    store.put(b"", first)
    store.put(b"", second)
    store.delete(b"", "a")
    assert store.get(b"", "b").conversation() == [first, second]
    store.delete(b"", "b")
    assert store.num_bytes == 0


def test_a_response_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(most_bytes=100)
    store.put(b"", turn("a", 200))
    assert len(store) == store.num_bytes == 0


def test_a_conversation_no_body_could_hold_is_not_gone_on_from() -> None:
    items = json.dumps([{"type": "reasoning", "content": "a" * (MOST_BEHIND // 2)}]).encode()
    first = Turn("a", b"", items, b"[]")
    second = Turn("b", b"", items, b"[]", first)
    assert first.conversation() == [first]
    with pytest.raises(ApiError) as caught:
        second.conversation()
    assert (caught.value.status, caught.value.param) == (400, "previous_response_id")
