"""One engine runs a prompt, another goes on with its pages, over sockets of this machine."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driving import Answer, drive, sizes
from page_ends import eventually
from probe import free_port
from setups import Setup, pair_on_devices
from simulated_device import SimulatedRunner, simulated_engine
from tiny import VOCAB
from tiny_vision import VISION, image, with_images

from eagle3_jax.engine import Engine, Request
from eagle3_jax.sampling.params import SamplingParams
from serve.kv_transfer.config import KVRole, KVTransferConfig
from serve.kv_transfer.transfers import Transfers
from serve.kv_transfer.wire import Connection
from serve.openai.kv_transfer import KVTransferParams

ROOM, SIZE = 10_000_000, 1 << 14
"""Bytes of the host's memory, and of a simulated page."""
PROMPT = [(7 * j * j + 3) % VOCAB for j in range(39)]
PAGES = 9
Ends = tuple[Engine, Transfers]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ends]:
    """Makes engines on simulated devices, which check every row that they read, with their end of
    transfers."""
    monkeypatch.setattr(SimulatedRunner, "page_bytes", SIZE)

    def make(role: KVRole, expiry_s: float = 60.0) -> Ends:
        config = sizes(3, kv_offloading_bytes=ROOM)
        engine = simulated_engine(monkeypatch, config, vision=VISION)
        return engine, Transfers(engine, KVTransferConfig(role, port=0, expiry_s=expiry_s))

    return make


def request(name: str, tokens: int = 20) -> Request:
    return Request(name, PROMPT, SamplingParams(temperature=0.7, seed=3, max_tokens=tokens))


def produced(ends: Ends, own: Request | None = None) -> dict[str, Any]:
    """Run a prompt and return the answer's parameters of its pages, which are ready."""
    engine, transfers = ends
    asked = transfers.exported(own or request("p", 1))
    drive(engine, [asked])
    transfers.between_steps()
    params = transfers.answered(asked)
    assert params is not None
    return params


def fetching(ends: Ends, params: dict[str, Any], own: Request | None = None) -> Request:
    prompt = KVTransferParams.model_validate(params).prompt
    assert prompt is not None
    return ends[1].fetched(own or request("d"), prompt)


def went_on(ends: Ends, params: dict[str, Any], own: Request | None = None) -> Answer:
    asked = fetching(ends, params, own)
    return drive(ends[0], [asked])[asked.request_id]


def assert_as_alone(
    ends: Ends, answer: Answer, own: Request | None = None, salt: str = "alone"
) -> None:
    """The tokens and accepted drafts are those of the prompt that the engine runs itself."""
    own = replace(own or request("d"), cache_salt=salt)
    alone = drive(ends[0], [own])[own.request_id]
    assert (answer.token_ids, answer.accepted) == (alone.token_ids, alone.accepted)
    assert cached(alone) == 0


def cached(answer: Answer) -> int:
    return answer.outputs[-1].cached_tokens


def kept(ends: Ends) -> tuple[int, int]:
    """Names and slots that a producer keeps."""
    engine, transfers = ends
    assert transfers.server and engine._replicas.first.outgoing
    return transfers.server.num_kept, engine._replicas.first.outgoing.num_held


def assert_nothing_lost(*ends: Ends) -> None:
    for engine, _ in ends:
        scheduler, stats = engine._replicas.first, engine.stats()
        assert stats.free_pages == stats.total_pages and not scheduler.is_copying
        assert scheduler.tier and not any(scheduler.tier._holds.values())


def test_pages_of_an_image_are_found_for_the_same_image_alone(
    simulated: Callable[..., Ends],
) -> None:
    producer, taker = simulated("producer"), simulated("consumer")
    images = {name: image(seed, 8, 6) for seed, name in enumerate(("seen", "other"))}

    def asked(name: str, tokens: int = 16) -> Request:
        sampling = SamplingParams(temperature=0.7, seed=3, max_tokens=tokens)
        return with_images("r", [PROMPT[:10], images[name], [1, 2, 30, 4, 5]], sampling)

    # The other image is first, because its own run would leave pages here.
    for name, pages in (("other", 0), ("seen", 6)):
        answer = went_on(taker, produced(producer, asked("seen", 1)), asked(name))
        assert cached(answer) == 4 * pages
        assert_as_alone(taker, answer, asked(name), salt=name)
        taker[0].reset_prefix_cache()
    assert_nothing_lost(taker)


@pytest.mark.long
def test_devices_that_divide_contexts_pull_their_parts_in_float8_too() -> None:
    """In exact mode."""
    fields: dict[str, Any] = {"exact": True, "kv_cache_dtype": "fp8", "kv_cache_scale": 0.05}
    fields |= {"decode_context_parallel_size": 2, "page_size": 2}

    def on_two_devices(role: KVRole) -> Ends:
        pair = pair_on_devices(Setup(2, False, "latent", "float32", True))
        engine = Engine(*pair, sizes(3, kv_offloading_bytes=ROOM, **fields))
        return engine, Transfers(engine, KVTransferConfig(role, port=0))

    producer, taker = on_two_devices("producer"), on_two_devices("consumer")
    answer = went_on(taker, produced(producer))
    assert cached(answer) == 32
    assert_as_alone(taker, answer)
    assert_nothing_lost(producer, taker)


def test_pages_that_nobody_fetches_go_when_their_time_has_passed(
    simulated: Callable[..., Ends],
) -> None:
    producer, taker = simulated("producer", expiry_s=0.2), simulated("consumer")
    params = produced(producer)
    assert kept(producer) == (1, PAGES)
    eventually(lambda: kept(producer) == (0, 0))
    assert_nothing_lost(producer)
    assert cached(went_on(taker, params)) == 0


def test_pages_are_released_once_they_came_or_are_known_to_the_consumer(
    simulated: Callable[..., Ends],
) -> None:
    producer, taker = simulated("producer"), simulated("consumer")
    answer = went_on(taker, produced(producer))
    assert cached(answer) == 4 * PAGES and sum(answer.accepted) > 0
    assert taker[1].puller and taker[1].puller.counts.bytes == PAGES * SIZE
    assert_as_alone(taker, answer)
    eventually(lambda: kept(producer) == (0, 0))
    again = fetching(taker, produced(producer), request("again"))
    drive(taker[0], [again])
    taker[1].ended(again)
    eventually(lambda: kept(producer) == (0, 0))
    assert_nothing_lost(producer, taker)


@pytest.mark.parametrize("fault", ["checksum", "cut", "gone", "other_pair", "other_prompt"])
def test_whatever_goes_wrong_costs_a_prefill(
    fault: str, simulated: Callable[..., Ends], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answer, every failed page counted, no page or slot lost."""
    producer, taker = simulated("producer"), simulated("consumer")
    params = produced(producer)
    puller = taker[1].puller
    assert puller and producer[1].server
    if fault == "gone":
        params["remote_port"] = free_port()
    elif fault == "other_pair":
        puller.fingerprint = "another"
    elif fault == "other_prompt":
        params["remote_last_key"] = "00" * 32
    else:
        monkeypatch.setattr(Connection, "_send", SENDERS[fault])
    answer = went_on(taker, params)
    assert cached(answer) == 0
    assert_as_alone(taker, answer)
    assert puller.counts.failed == (0 if fault == "other_prompt" else PAGES)
    assert_nothing_lost(taker)


def _wrong_bit(peer: Connection, data: Any) -> None:
    sent = bytearray(data)
    if isinstance(data, memoryview):
        sent[5] ^= 1
    peer._peer.sendall(sent)


def _half_a_page(peer: Connection, data: Any) -> None:
    peer._peer.sendall(bytes(data[:7]) if isinstance(data, memoryview) else data)
    if isinstance(data, memoryview):
        raise OSError("killed")


SENDERS = {"checksum": _wrong_bit, "cut": _half_a_page}
"""Pages go out as views of arrays, all else as bytes."""


def test_a_request_cancelled_while_its_pages_come_leaves_nothing_behind(
    simulated: Callable[..., Ends],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine serves other requests meanwhile, and the transfer runs to its end."""
    producer, taker = simulated("producer"), simulated("consumer")
    params, resume, send = produced(producer), threading.Event(), Connection.send_page
    patched = lambda *given: (resume.wait(10), send(*given))  # noqa: E731
    monkeypatch.setattr(Connection, "send_page", patched)
    engine, _ = taker
    engine.add(fetching(taker, params))
    engine.add(replace(request("other"), prompt_ids=[5, 6, 7]))
    done: list[str] = []
    while "other" not in done:
        done += [o.request_id for o in engine.step() if o.finish_reason]
    engine.cancel("d")
    assert engine._replicas.first.is_copying
    resume.set()
    while engine.has_work:
        engine.step()
    assert_nothing_lost(taker)
