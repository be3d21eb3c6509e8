"""The store of responses: contents, limits and owners."""

import random

import pytest

from serve.asgi.errors import ApiError
from serve.responses.store import (
    LEAST_ENTRIES,
    MOST_ENTRIES,
    ResponseStore,
    ResponseStores,
    StoredTurn,
)


def turn(name: str, size: int = 10, previous: StoredTurn | None = None) -> StoredTurn:
    return StoredTurn(name, b"b" * size, b"[]", b"[]", previous)


def test_a_store_is_bounded_and_counts_what_it_keeps_alive_once() -> None:
    """After any of 500 operations the bytes are those of all turns that can be reached."""
    rng = random.Random(0)
    store = ResponseStore(most_entries=8, most_bytes=400)
    held: dict[str, StoredTurn] = {}
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
        alive: set[StoredTurn] = set()
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


@pytest.mark.parametrize("num_keys", [0, 2, 1000])
def test_a_keys_responses_make_room_for_its_own_alone(num_keys: int) -> None:
    """Without keys all clients share one store, whatever their headers show."""
    stores = ResponseStores(num_keys)
    stores.of(b"first").put(b"first", turn("a"))
    for n in range(MOST_ENTRIES):
        stores.of(b"second").put(b"second", turn(f"{n}"))
    held = {key: len(stores.of(key)) for key in (b"first", b"second")}
    if not num_keys:
        assert held == {b"first": MOST_ENTRIES, b"second": MOST_ENTRIES}
        with pytest.raises(ApiError):
            stores.of(b"first").get(b"first", "a")
    else:
        assert held == {b"first": 1, b"second": max(MOST_ENTRIES // num_keys, LEAST_ENTRIES)}
        assert stores.of(b"first").get(b"first", "a")
