"""Malformed and hostile images: no server error, one line each, time and memory within bounds."""

import asyncio
import json
import resource
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from typing import Any

import pytest
from fake_server import Served
from hostile_images import SLOW, webp_of_large_canvas
from malformed import bmp, bodies, gif, jpeg, png
from seeing import chat, data_url, part, picture, reader, seeing

from serve.images import decoder
from serve.images.errors import BadImage
from serve.images.reader import ImageReader, NoImages
from serve.images.sources import ImageSource
from serve.options.operations import Operations
from serve.sandbox.sandbox import EndedError

MIB = 2**20
CLIENTS = 4
SHORT, LONG = 100, 2000
CHAT = "/v1/chat/completions"
MOST_GROWTH = 400 * MIB
"""Of the peak of this process: some decoders at work, far below what the files say they are."""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with reader(max_pixels=2**22) as images, seeing(images) as running:
        yield running


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ask(server: Served, body: dict[str, Any], path: str = CHAT) -> tuple[int, str]:
    data = json.dumps(body)
    answer = server.http.post(path, content=data, headers={"content-type": "application/json"})
    if answer.status_code == 200:
        return 200, ""
    return answer.status_code, answer.json()["error"]["message"]


def turns_of(server: Served, queue: int) -> Any:
    """Return the turns of the quick queue, 0, or of the slow one, 1."""
    images: Any = server.service.images
    return images._decoder._queues[queue].turns


def test_nothing_malformed_is_a_server_error(
    server: Served, request: pytest.FixtureRequest
) -> None:
    count, before = LONG if request.config.getoption("--long") else SHORT, peak_bytes()
    with ThreadPoolExecutor(CLIENTS) as pool:
        given = list(islice(bodies(seed=3), count))
        answers = list(pool.map(lambda one: ask(server, one[1], one[0]), given))
    statuses = Counter(status for status, _ in answers)
    assert set(statuses) == {200, 400}, statuses
    assert statuses[400] > count // 2 and statuses[200] > count // 20, statuses
    for status, message in answers:
        assert status == 200 or (5 < len(message) < 1100 and "\n" not in message), message
    assert peak_bytes() - before < MOST_GROWTH
    assert server.http.get("/health").status_code == 200
    assert not server.engine.has_work


BOMBS = [png(60_000, 60_000), png(40_000, 2_000), jpeg(65_000, 65_000), jpeg(9000, 9000)]
BOMBS += [gif(65_535, 65_535), bmp(40_000, 40_000), webp_of_large_canvas()]


@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: repr(bomb[:8]))
def test_a_file_that_says_it_is_huge_is_not_decoded(server: Served, bomb: bytes) -> None:
    before = peak_bytes()
    status, message = ask(server, chat(part(bomb)))
    assert status == 400 and "pixels" in message, message
    assert peak_bytes() - before < 50 * MIB


def test_an_image_is_answered_before_the_hostile_ones_that_came_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their decoding is ended, here after less time than a server gives them."""
    monkeypatch.setattr(decoder, "QUICK_SECONDS", 0.1)
    monkeypatch.setattr(decoder, "SECONDS", 0.2)
    monkeypatch.setattr(decoder, "SECONDS_A_MEGAPIXEL", 0.02)
    ended: list[str] = []
    hostile = {name: chat(part(make())) for name, make in SLOW.items()}
    with seeing() as server, ThreadPoolExecutor(len(hostile)) as pool:
        assert ask(server, chat(part(picture(16))))[0] == 200
        given = {name: pool.submit(ask, server, one) for name, one in hostile.items()}
        for answer in given.values():
            answer.add_done_callback(lambda _: ended.append("hostile"))
        while not turns_of(server, 1)._held:
            assert len(ended) < 3, "too quick to be hostile"
        for size in (17, 18):
            status, message = ask(server, chat(part(picture(size))))
            assert status == 200, message
        assert len(ended) < len(hostile)
        for name, answer in given.items():
            status, message = answer.result()
            if name == "a bitmap of short rows" and status == 200:
                continue  # It takes about as long as its pixels may: 0.2 s a million.
            assert status == 400 and "decoding it takes more than" in message, (name, message)


def test_memory_is_limited_and_too_many_images_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A canvas within the limit of pixels takes eight bytes of each."""
    monkeypatch.setattr(decoder, "BYTES_A_PIXEL", 0)
    with seeing() as server:
        status, message = ask(server, chat(part(webp_of_large_canvas(8000))))
        assert status == 400 and "cannot be decoded" in message
        turns = turns_of(server, 0)
        turns._free, turns._most = 0, 0
        answer = server.http.post(CHAT, json=chat(part(picture())))
        assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
        assert "images wait to be decoded" in answer.json()["error"]["message"]


def test_clients_take_turns_at_slow_images_and_a_refused_file_is_decoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []

    def ask_in_vain(self: Any, arguments: Any, data: bytes, queue: Any) -> None:
        if queue is self._queues[1]:
            asked.append(data)
            time.sleep(0.02)
        raise EndedError

    monkeypatch.setattr(decoder.ImageDecoder, "_ask", ask_in_vain)

    async def read(images: ImageReader, client: str, number: int) -> None:
        image = ImageSource(data_url(b"image %d" % number))
        with pytest.raises(BadImage, match="decoding it takes more than"):
            await images.read([image], client)

    async def test(images: ImageReader) -> None:
        greedy = [asyncio.create_task(read(images, "greedy", number)) for number in range(12)]
        while not asked:
            await asyncio.sleep(0.001)
        await read(images, "other", 20)
        assert len(asked) < 7
        await asyncio.gather(*greedy)
        await asyncio.gather(*(read(images, f"{number}", number) for number in range(12)))
        assert len(asked) == 13
        monkeypatch.setattr(decoder, "REFUSED_SECONDS", 0)
        await read(images, "other", 3)
        assert len(asked) == 14

    with reader() as images:
        asyncio.run(test(images))


def test_refused_files_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "REFUSED_FILES", 3)
    refused = decoder.RefusedFiles()
    for number in range(5):
        refused.note(b"%d" % number, "why")
    for number in range(5):
        with pytest.raises(BadImage) if number > 1 else nullcontext():
            refused.check(b"%d" % number)


def test_images_are_read_for_the_client_that_sent_them() -> None:
    """By its key, on every endpoint that reads images."""
    clients: list[str] = []

    class Noting(NoImages):
        async def read(self, sources: Any, client: str = "") -> Any:
            clients.append(client)
            return {}

    user = {"role": "user", "content": "hi"}
    bodies: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [user], "max_tokens": 9},
        "/tokenize": {"messages": [user]},
        "/v1/responses": {"input": [user], "max_output_tokens": 9},
        "/v1/messages": {"messages": [user], "max_tokens": 9},
        "/v1/messages/count_tokens": {"messages": [user]},
    }
    limited = Operations(api_keys=("first", "second"))
    with seeing(Noting(), operations=limited) as server:
        for path, body in bodies.items():
            for key in ("first", "second"):
                header = {"Authorization": f"Bearer {key}"}
                assert server.http.post(path, json=body, headers=header).status_code == 200
    assert clients == ["key 0", "key 1"] * len(bodies)
