"""Malformed images and parts: no server error, one line each, memory within bounds."""

import json
import resource
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from fake_server import Served
from hostile_images import SLOW, webp_of_large_canvas
from malformed import bmp, bodies, gif, jpeg, png
from seeing import chat, part, picture, reader, seeing

from serve.images import decoder

MIB = 2**20
CLIENTS = 4
SHORT, LONG = 100, 2000
MOST_PIXELS = 2**22
MOST_GROWTH = 400 * MIB
"""Of the peak of this process: some decoders at work, far below what the files say they are."""


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def ask(server: Served, given: tuple[str, dict[str, Any]]) -> tuple[int, str]:
    path, body = given
    data = json.dumps(body)
    answer = server.http.post(path, content=data, headers={"content-type": "application/json"})
    if answer.status_code == 200:
        return 200, ""
    return answer.status_code, answer.json()["error"]["message"]


def test_nothing_malformed_is_a_server_error(request: pytest.FixtureRequest) -> None:
    count = LONG if request.config.getoption("--long") else SHORT
    with seeing(reader(max_pixels=MOST_PIXELS)) as server, ThreadPoolExecutor(CLIENTS) as pool:
        before = peak_bytes()
        given = list(islice(bodies(seed=3), count))
        answers = list(pool.map(lambda one: ask(server, one), given))
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
def test_what_says_it_is_huge_is_not_decoded(bomb: bytes) -> None:
    with seeing() as server:
        before = peak_bytes()
        status, message = ask(server, ("/v1/chat/completions", chat(part(bomb))))
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
    hostile = {name: ("/v1/chat/completions", chat(part(make()))) for name, make in SLOW.items()}
    with seeing() as server, ThreadPoolExecutor(len(hostile)) as pool:
        assert ask(server, ("/v1/chat/completions", chat(part(picture(16)))))[0] == 200
        given = {name: pool.submit(ask, server, one) for name, one in hostile.items()}
        for answer in given.values():
            answer.add_done_callback(lambda _: ended.append("hostile"))
        while not server.service.images._decoder._queues[1]._waiting:  # type: ignore
            assert len(ended) < 3, "too quick to be hostile"
        for size in (17, 18):
            status, message = ask(server, ("/v1/chat/completions", chat(part(picture(size)))))
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
        body = chat(part(webp_of_large_canvas(8000)))
        status, message = ask(server, ("/v1/chat/completions", body))
        assert status == 400 and "cannot be decoded" in message
        monkeypatch.setattr(server.service.images._decoder._queues[0], "_most", 0)  # type: ignore
        answer = server.http.post("/v1/chat/completions", json=chat(part(picture())))
        assert answer.status_code == 429 and answer.headers["Retry-After"] == "1"
        assert "images wait to be decoded" in answer.json()["error"]["message"]
