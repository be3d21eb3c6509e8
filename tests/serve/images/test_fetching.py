"""Images that a server fetches and reads for clients, and those that it refuses."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from seeing import data_url, picture, reader, seeing

from serve.engine.threads import Threads
from serve.images import remote
from serve.images.errors import BadImage, ImagesBusy
from serve.images.options import ImageOptions
from serve.images.remote import Fetcher, is_public
from serve.images.sources import ImageSource, Loader

PICTURE = picture()
RUN = Threads("tests", 4).run


@dataclass
class Site:
    """A web server on loopback; paths: that it was asked for."""

    port: int
    paths: list[str] = field(default_factory=list)

    def url(self, path: str, host: str = "images.example") -> str:
        return f"http://{host}:{self.port}{path}"


def handler_of(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.paths.append(self.path)
            match self.path:
                case "/redirect":
                    self.send_response(302)
                    self.send_header("Location", f"http://127.0.0.1:{site.port}/secret.png")
                    self.end_headers()
                case "/missing":
                    self.send_error(404)
                case "/slow":
                    self._send_until_left(itertools.repeat(b"x", 100), 0.05)
                case "/endless":
                    self._send_until_left(itertools.repeat(b"x" * 65536, 10_000))
                case _:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(PICTURE)

        def _send_until_left(self, parts: Iterable[bytes], pause: float = 0) -> None:
            """The client is to hang up first."""
            self.send_response(200)
            self.end_headers()
            with suppress(ConnectionError):
                for part in parts:
                    self.wfile.write(part)
                    time.sleep(pause)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    return Handler


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    found = Site(0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(found))
    found.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()
    server.server_close()


@contextmanager
def names(monkeypatch: pytest.MonkeyPatch, **hosts: str) -> Iterator[list[str]]:
    """A name server of our own, and the names that it was asked for."""
    given = {name.replace("_", "."): address for name, address in hosts.items()}
    real, asked = socket.getaddrinfo, list[str]()

    def look_up(host: str, *more: Any, **options: Any) -> Any:
        asked.append(host)
        if host.endswith(".unknown"):
            raise socket.gaierror("no such name")
        return real(given.get(host, host), *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up)
        yield asked


def fetch(url: str, *domains: str, allowed: Any = is_public, **limits: Any) -> bytes:
    async def run() -> bytes:
        most = limits.pop("max_bytes", 2**20)
        return await Fetcher(domains, most, RUN, allowed, **limits).fetch(url)

    return asyncio.run(run())


def anywhere(_: str) -> bool:
    return True


def test_a_file_of_a_named_host_is_fetched_and_the_name_looked_up_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that changes its answer after the check leads nowhere else."""
    with names(monkeypatch, images_example="127.0.0.1") as asked:
        for domain in ("images.example", "*"):
            url = site.url("/a.png?size=2#part")
            assert fetch(url, domain, allowed=anywhere) == PICTURE
        assert asked.count("images.example") == 2
    assert site.paths[-1] == "/a.png?size=2"


@pytest.mark.parametrize(
    ("path", "naming"),
    [
        ("/redirect", "redirects, which is not followed"),
        ("/missing", "answered with status 404"),
        ("/slow", "did not answer within"),
        ("/endless", "larger than 100000 bytes"),
    ],
)
def test_what_a_host_answers_is_held_to_limits(
    site: Site, monkeypatch: pytest.MonkeyPatch, path: str, naming: str
) -> None:
    limits: dict[str, Any] = {"max_bytes": 100_000, "seconds": 0.5 if path == "/slow" else 60}
    before = len(site.paths)
    with names(monkeypatch, images_example="127.0.0.1"), pytest.raises(BadImage, match=naming):
        fetch(site.url(path), "images.example", allowed=anywhere, **limits)
    assert site.paths[before:] == [path]


ADDRESSES = ("127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1")
ADDRESSES += ("0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fc00::1")
ADDRESSES += ("::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "ff02::1")
ADDRESSES += ("::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1", "64:ff9b:1::7f00:1", "fec0::1")
ADDRESSES += ("5f00::1", "3fff::1", "2001:db8::1", "2001:0:7f00:1::1", "fd00:ec2::254", "100::1")
ADDRESSES += ("2606:4700::5efe:127.0.0.1", "2606:4700::200:5efe:10.0.0.1", "2002:a00:1::1")
ADDRESSES += ("168.63.129.16", "::ffff:168.63.129.16", "192.0.0.192", "64:ff9b::c000:c0")
ADDRESSES += ("192.88.99.1", "198.18.0.1", "203.0.113.9", "240.0.0.1", "100.100.100.200")
PUBLIC = ("8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::")
PUBLIC += ("2606:4700::5efe:8.8.8.8", "3ffe::1", "2a00:1450:4001::200e%eth0")


def test_addresses_that_are_somebodys_own_are_not_public() -> None:
    assert not [address for address in ADDRESSES if is_public(address)]
    assert all(map(is_public, PUBLIC))


def test_a_name_that_leads_inside_is_refused_before_anything_is_sent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(site.paths)
    with names(monkeypatch, images_example="127.0.0.1", other_example="::1"):
        for host in ("images.example", "other.example", "localhost", "127.0.0.1", "2130706433"):
            with pytest.raises(BadImage, match="an address that is not public"):
                fetch(site.url("/secret.png", host), "*")
    assert len(site.paths) == before
    both = [(None, None, None, "", (address, 80)) for address in ("8.8.8.8", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(BadImage, match="an address that is not public"):
        fetch("http://images.example/a.png", "*")


@pytest.mark.parametrize(
    "url",
    [
        "http://images.example@127.0.0.1/a.png",
        "http://images.example\\@127.0.0.1/a.png",
        "http://127.0.0.1#@images.example/a.png",
        "http://images.example.evil.example/a.png",
        "http://images.example./a.png",
        "http://images.example:0/a.png",
        "http://images.example:99999/a.png",
        "http:///a.png",
        "http:images.example/a.png",
        "http://images.example/a b.png",
        "http://images.example/\r\nHost: inside",
        "http://im\u0430ges.example/a.png",
        "http://[::1/a.png",
        "http://nowhere.unknown/a.png",
        "//images.example/a.png",
        "gopher://images.example/a.png",
        "data:text/html;base64,aGk=",
        "data:image/svg+xml,<svg/>",
    ],
)
def test_odd_urls_are_refused_in_one_line(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ImageOptions(domains=("images.example", "nowhere.unknown"))

    async def load() -> bytes:
        fetcher = Fetcher(options.domains, options.max_bytes, RUN, anywhere)
        return await Loader(options, RUN, fetcher).load(ImageSource(url))

    with (
        names(monkeypatch, images_example="192.0.2.1"),
        pytest.raises(BadImage, match=r"\A[^\n]{10,200}\Z"),
    ):
        asyncio.run(load())


def test_a_slow_host_leaves_turns_to_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WAIT_S", 1.5)
    before = len(site.paths)

    async def run() -> list[bytes | BaseException]:
        fetcher = Fetcher(("*",), 2**20, RUN, anywhere, seconds=1)
        slow = [
            asyncio.create_task(fetcher.fetch(site.url("/slow", "slow.example"))) for _ in range(12)
        ]
        while len(site.paths) < before + remote.OF_ONE_HOST:
            await asyncio.sleep(0.01)
        assert await fetcher.fetch(site.url("/a.png", "quick.example")) == PICTURE
        assert not any(task.done() for task in slow)
        return await asyncio.gather(*slow, return_exceptions=True)

    with names(monkeypatch, slow_example="127.0.0.1", quick_example="127.0.0.1"):
        found = asyncio.run(run())
    assert {type(error) for error in found} == {BadImage, ImagesBusy}


def test_a_host_whose_name_is_looked_up_slowly_keeps_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, let = list[str](), threading.Event()

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        let.wait(60)
        raise socket.gaierror("no such name")

    async def run() -> None:
        fetcher = Fetcher(("*",), 2**20, RUN, anywhere, seconds=0.1)
        for _ in range(3):
            with pytest.raises(BadImage, match="did not answer within"):
                await fetcher.fetch("http://slow.example/a.png")
        let.set()

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    asyncio.run(run())
    assert asked == ["slow.example"]


def test_a_stored_response_holds_the_image_that_a_url_had(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = Fetcher(("images.example",), 2**20, RUN, anywhere)
    image = {"type": "input_image", "image_url": site.url("/once.png")}
    items = [{"role": "user", "content": [image]}]
    with (
        names(monkeypatch, images_example="127.0.0.1"),
        reader(fetcher, domains=("images.example",)) as images,
        seeing(images) as server,
    ):
        first = server.http.post("/v1/responses", json={"input": items}).json()
        again = {"input": "And now?", "previous_response_id": first["id"]}
        assert server.http.post("/v1/responses", json=again).status_code == 200
        listed = server.http.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert site.paths.count("/once.png") == 1
    assert listed[0]["content"][0]["image_url"] == data_url(PICTURE)
