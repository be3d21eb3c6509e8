"""Subscribers get everything in order, and again from any number, without delaying others."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kv_index import IndexCopy
from probe import wait_for
from vllm_wire import Subscriber, apply, follow

from eagle3_jax.engine.kv.events import AllCleared, KVEvent, PagesRemoved, PagesStored
from serve.kv_events import replays
from serve.kv_events.config import KVEventsConfig
from serve.kv_events.publisher import KVEventPublisher

ANY = "tcp://127.0.0.1:0"


def page(number: int) -> PagesStored:
    """A page that stands alone."""
    return PagesStored((number.to_bytes(32, "big"),), None, (number, 1), (2,), 2, "", "GPU")


def traffic(steps: int) -> list[list[KVEvent]]:
    """The events of each step: a page comes, most go again, once all do."""
    batches: list[list[KVEvent]] = [[page(step)] for step in range(steps)]
    for step in range(3, steps, 3):
        batches[step].append(PagesRemoved(page(step - 1).keys, "GPU"))
    batches[steps // 2][:0] = [AllCleared(), page(1000)]
    return batches


LARGE = PagesStored((bytes(32),), None, tuple(range(1000, 11_000)), (1,), 10_000, "", "GPU")
"""Its batch has 30 kB."""
LARGER = replace(LARGE, token_ids=tuple(range(1000, 61_000)), page_tokens=60_000)
"""Its batch has 200 kB, too much to be copied for each client."""


def resident() -> int:
    """Bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def publish(publisher: KVEventPublisher, batches: list[list[KVEvent]]) -> None:
    for events in batches:
        for event in events:
            match event:
                case PagesStored():
                    publisher.log.stored(event)
                case PagesRemoved(keys, medium):
                    publisher.log.removed(keys[0], medium)
                case AllCleared():
                    publisher.log.cleared()
        publisher.publish()


@contextmanager
def hearing(
    publisher: KVEventPublisher, *, topic: str = "", most: int = 1000
) -> Iterator[Subscriber]:
    """A subscriber that gets all from now on. A publisher learns of one late: it is called until
    it answers."""
    with Subscriber(publisher.endpoint, topic=topic, most=most) as subscriber:
        while not subscriber.live.poll(50):
            publish(publisher, [[AllCleared()]])
        while subscriber.next()[0] < publisher._next_number - 1:
            pass
        yield subscriber


def test_subscribers_agree_with_the_events_whenever_they_come() -> None:
    """From replays, one of them while more is published; another hears it live."""
    batches, expected = traffic(40), IndexCopy()
    for events in batches:
        expected.replay(events)
    places = sorted((medium, int.from_bytes(bytes(key))) for medium, key in expected.places)
    with (
        KVEventPublisher(KVEventsConfig(ANY, ANY)) as publisher,
        hearing(publisher) as live,
        ThreadPoolExecutor() as threads,
    ):
        last = publisher._next_number + len(batches) - 1
        where = (publisher.endpoint, f"{publisher.replay_endpoint}", last)
        publish(publisher, batches[:20])
        followers = [threads.submit(follow, *where)]
        publish(publisher, batches[20:])
        followers.append(threads.submit(follow, *where))
        copy, number = IndexCopy(), -1
        while number < last:
            number, batch = live.next()
            apply(copy, batch)
        copies = [copy, *(thread.result(60) for thread in followers)]
    assert [sorted(one.places) for one in copies] == [places] * 3


def test_a_replay_begins_at_the_number_asked_for_and_has_only_what_is_kept() -> None:
    config = KVEventsConfig(ANY, ANY, buffer_steps=4)
    with KVEventPublisher(config) as publisher:
        publish(publisher, traffic(10))
        wait_for(lambda: publisher.published >= 10)
        with Subscriber(publisher.endpoint, publisher.replay_endpoint) as subscriber:
            assert [number for number, _ in subscriber.replay(8)] == [8, 9]
            assert [number for number, _ in subscriber.replay(0)] == [6, 7, 8, 9]
            assert [number for number, _ in subscriber.replay(10)] == []
            subscriber.replays.send_multipart((b"", b"8"))
            subscriber.replays.send(b"8")
            assert [number for number, _ in subscriber.replay(9)] == [9], "it goes on"


def test_a_subscriber_that_never_reads_holds_nobody_up() -> None:
    """It misses what its queue has no room for; another gets everything."""
    count = 500
    with KVEventPublisher(KVEventsConfig(ANY, ANY, hwm=8)) as publisher:
        with hearing(publisher, most=1) as idle:
            first = publisher._next_number
            publish(publisher, [[LARGE]] * count)
            wait_for(lambda: publisher.published >= first + count)
            with Subscriber(publisher.endpoint, publisher.replay_endpoint) as other:
                assert [number for number, _ in other.replay(first)] == [
                    *range(first, first + count)
                ]
            heard = 0
            while idle.live.poll(300):
                idle.next()
                heard += 1
            assert 0 < heard < count
    assert publisher.dropped == 0


def test_replays_that_nobody_reads_cost_a_few_batches_and_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another client gets all of its replay meanwhile; whoever is given up can ask again."""
    monkeypatch.setattr(replays, "STALLED_S", 0.5)
    count, clients = 300, 60
    with KVEventPublisher(KVEventsConfig(ANY, ANY)) as publisher, ExitStack() as stack:
        publish(publisher, [[LARGER]] * count)
        wait_for(lambda: publisher.published == count)
        before, where = resident(), (publisher.endpoint, publisher.replay_endpoint)
        idle = [stack.enter_context(Subscriber(*where, most=1)) for _ in range(clients)]
        for subscriber in idle:
            subscriber.replays.send_multipart((b"", bytes(8)))
        other = stack.enter_context(Subscriber(*where))
        assert [number for number, _ in other.replay(0)] == [*range(count)]
        replaying = publisher._replays
        assert replaying
        wait_for(lambda: not replaying.is_busy)
        assert resident() - before < 100_000_000
        unread = 0
        while idle[0].replays.poll(300):
            idle[0].replays.recv_multipart()
            unread += 1
        assert unread < count
        assert [number for number, _ in idle[0].replay(count - 10)] == [*range(count - 10, count)]


def test_kept_batches_are_bounded_in_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """And with them what waits for a subscriber that never reads."""
    monkeypatch.setattr(replays, "KEPT_BYTES", 1_000_000)
    with KVEventPublisher(KVEventsConfig(ANY, ANY)) as publisher:
        publish(publisher, [[page(step)] for step in range(100)])
        with hearing(publisher, most=1):
            before = resident()
            publish(publisher, [[LARGE]] * 3000)
            last = publisher._next_number - 1
            wait_for(lambda: publisher._kept.last == last)
            assert resident() - before < 50_000_000
        with Subscriber(publisher.endpoint, publisher.replay_endpoint) as subscriber:
            kept = [number for number, _ in subscriber.replay(0)]
        assert kept == [*range(kept[0], last + 1)] and 20 < len(kept) < 50


def test_the_engine_goes_on_when_the_publisher_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that the queue has no room for are counted, and seen by the gap in the numbers."""
    go = threading.Event()
    with KVEventPublisher(KVEventsConfig(ANY, ANY, max_queue_size=2)) as publisher:
        send = publisher._send
        monkeypatch.setattr(publisher, "_send", lambda batch: (go.wait(), send(batch)))
        publish(publisher, [[page(0)]])
        wait_for(lambda: publisher._queue.empty())
        publish(publisher, [[page(step)] for step in range(1, 6)])
        assert publisher.dropped == 3
        go.set()
        wait_for(lambda: publisher.published == 3)
        publish(publisher, [[page(6)]])
        wait_for(lambda: publisher.published == 4)
        with Subscriber(publisher.endpoint, publisher.replay_endpoint) as subscriber:
            assert [number for number, _ in subscriber.replay(0)] == [0, 1, 2, 6]


def test_subscribers_get_the_topic_they_ask_for() -> None:
    with KVEventPublisher(KVEventsConfig(ANY, topic="kv@a@m")) as publisher:
        with hearing(publisher, topic="kv@") as mine, hearing(publisher, topic="") as all_of_them:
            publish(publisher, [[page(1)]])
            for subscriber in (mine, all_of_them):
                topic, *_ = subscriber.live.recv_multipart()
                assert topic == b"kv@a@m"


def test_endpoints_of_others_are_connected_to(tmp_path: Path) -> None:
    """llm-d's central subscriber is the end that listens."""
    config = KVEventsConfig("tcp://router.example:5557")
    assert not config.listens and KVEventsConfig("tcp://*:5557").listens
    assert KVEventsConfig("tcp://[::1]:5557").listens and KVEventsConfig("ipc:///run/a").listens
    with KVEventPublisher(KVEventsConfig(f"ipc://{tmp_path}/events")) as publisher:
        with hearing(publisher) as subscriber:
            publish(publisher, [[page(1)]])
            assert subscriber.next()[1].events


def test_an_address_that_is_taken_is_one_line() -> None:
    with KVEventPublisher(KVEventsConfig(ANY)) as publisher:
        with pytest.raises(ValueError, match=r"--kv-events-config endpoint: .*in use"):
            KVEventPublisher(KVEventsConfig(publisher.endpoint))
        with pytest.raises(ValueError, match=r"--kv-events-config replay_endpoint: .*in use"):
            KVEventPublisher(KVEventsConfig(ANY, publisher.endpoint))
