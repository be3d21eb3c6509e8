"""Fetch images over HTTP for clients, only from named hosts at public addresses.

The host's name is resolved and its addresses are checked here. The connection then uses the checked
address, so that a second DNS answer cannot redirect it.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cached_property, partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, cast
from urllib.parse import SplitResult, urlsplit
from weakref import WeakValueDictionary

import httpcore2 as http

from serve.images.errors import BadImage, ImagesBusy
from serve.images.options import ANY_HOST

GLOBAL_UNICAST = ip_network("2000::/3")
CARRIERS = tuple(map(ip_network, ("::ffff:0:0/96", "64:ff9b::/96")))
"""IPv4-mapped and translated (RFC 6052) addresses, which end with an IPv4 address."""
SIX_TO_FOUR = ip_network("2002::/16")
ISATAP = (0x00005EFE, 0x02005EFE)
"""Prefixes of an IPv4 address at the end of an IPv6 address of any network (RFC 5214)."""
SPECIAL = tuple(
    map(
        ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
            *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
            *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            *("168.63.129.16/32", "2001::/23", "2001:db8::/32", "3fff::/20"),
        ),
    )
)
"""IANA's special-purpose blocks of IPv4 and of IPv6's global unicast, and Azure's host."""


def is_public(address: str) -> bool:
    """Return whether an IP address in any notation is on the public internet.

    An IPv6 address is public if it is global unicast or represents an IPv4 address, and every IPv4
    address in it is public.
    """
    ip = ip_address(address.partition("%")[0])
    if any(ip in block for block in SPECIAL):
        return False
    if isinstance(ip, IPv4Address):
        return True
    carries = any(ip in block for block in CARRIERS)
    return (carries or ip in GLOBAL_UNICAST) and all(map(is_public, _within(ip, carries)))


def _within(ip: IPv6Address, carries: bool) -> list[str]:
    """Return the IPv4 addresses in an IPv6 address."""
    number, found = int(ip), []
    if carries or (number >> 32) & 0xFFFFFFFF in ISATAP:
        found.append(number & 0xFFFFFFFF)
    if ip in SIX_TO_FOUR:
        found.append((number >> 80) & 0xFFFFFFFF)
    return [str(IPv4Address(part)) for part in found]


Run = Callable[[Callable[[], Any]], Awaitable[Any]]
"""A function that does blocking work in a thread."""
FETCH_S = 5.0
"""Timeout of a whole fetch, as in vLLM."""
WAIT_S = 10.0
"""Timeout of waiting for a turn."""
FETCHES, OF_ONE_HOST = 8, 2
"""Concurrent fetches in total and from one host, so that a slow host does not block others."""
NO_URL = "its URL must be http(s)://HOST/PATH, without a user's name"
PORTS = {"http": 80, "https": 443}
HEADERS = [(b"Accept", b"image/*"), (b"Accept-Encoding", b"identity"), (b"User-Agent", b"eagle3")]


class Fetcher:
    """An HTTP client for the hosts of `domains`; `allowed` decides to which addresses."""

    def __init__(
        self,
        domains: tuple[str, ...],
        max_bytes: int,
        run: Run,
        allowed: Callable[[str], bool] = is_public,
        seconds: float = FETCH_S,
    ) -> None:
        self._domains, self._max_bytes, self._seconds = domains, max_bytes, seconds
        self._network = _CheckedAddresses(run, allowed)
        self._turns = asyncio.Semaphore(FETCHES)
        self._of_hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def fetch(self, url: str) -> bytes:
        """Fetch an http(s) URL; BadImage for a forbidden or failing one, ImagesBusy for no turn."""
        parts = _split(url)
        if ANY_HOST not in self._domains and parts.hostname not in self._domains:
            raise BadImage(
                "its host is none that images are fetched from (--allowed-media-domains): send it "
                "as a data URI"
            )
        async with self._turn(f"{parts.hostname}"):
            return await self._fetch(parts)

    @asynccontextmanager
    async def _turn(self, host: str) -> AsyncIterator[None]:
        """Wait for a turn of the host, then for one of all turns, and hold both."""
        of_host = self._of_hosts.setdefault(host, asyncio.Semaphore(OF_ONE_HOST))
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(WAIT_S):
                    await held.enter_async_context(of_host)
                    await held.enter_async_context(self._turns)
            except TimeoutError as error:
                raise ImagesBusy(
                    f"{OF_ONE_HOST} images of one host and {FETCHES} of all are fetched at a time, "
                    f"and this one waited {WAIT_S:g} s; send it again later"
                ) from error
            yield

    async def _fetch(self, parts: SplitResult) -> bytes:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._get(parts)
        except (TimeoutError, http.TimeoutException) as error:
            raise BadImage(f"its URL did not answer within {self._seconds:g} seconds") from error
        except (http.NetworkError, http.ProtocolError, OSError, ValueError) as error:
            if isinstance(error, BadImage):
                raise
            raise BadImage("its URL can't be fetched: the host does not answer as HTTP") from error

    async def _get(self, parts: SplitResult) -> bytes:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        port = parts.port or PORTS[parts.scheme]
        url = http.URL(scheme=parts.scheme, host=f"{parts.hostname}", port=port, target=target)
        headers = [(b"Host", parts.netloc.encode()), *HEADERS]
        async with (
            http.AsyncConnectionPool(self._tls, network_backend=self._network) as pool,
            pool.stream("GET", url, headers=headers) as response,
        ):
            if 300 <= response.status < 400:
                raise BadImage("its URL redirects, which is not followed: give the last one")
            if response.status != 200:
                raise BadImage(f"its URL answered with status {response.status}")
            return await self._within_limit(response.aiter_stream())

    async def _within_limit(self, pieces: AsyncIterator[bytes]) -> bytes:
        found = bytearray()
        async for piece in pieces:
            found += piece
            if len(found) > self._max_bytes:
                raise BadImage(f"its file is larger than {self._max_bytes} bytes")
        return bytes(found)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return http.default_ssl_context()


def _split(url: str) -> SplitResult:
    """Split a URL; URLs that parsers could read differently are refused."""
    if not (url.isascii() and url.isprintable()) or set(url) & set(' \\"<>^`{|}'):
        raise BadImage("its URL has characters that must be escaped")
    try:
        parts = urlsplit(url)
        port = 1 if parts.port is None else parts.port
    except ValueError as error:
        raise BadImage(NO_URL) from error
    if not parts.hostname or not port or "@" in parts.netloc:
        raise BadImage(NO_URL)
    return parts


class _CheckedAddresses(http.AsyncNetworkBackend):
    """Network backend that connects only if all addresses of a name are allowed."""

    def __init__(self, run: Run, allowed: Callable[[str], bool]) -> None:
        self._run, self._allowed = run, allowed
        self._tcp = cast(http.AsyncNetworkBackend, http.AnyIOBackend())
        self._lookups: dict[tuple[str, int], asyncio.Task[Any]] = {}

    async def connect_tcp(self, host: str, port: int, *given: Any, **options: Any) -> Any:
        """Connect to the first of the host's addresses; BadImage if one is not allowed."""
        try:
            found = [f"{entry[4][0]}" for entry in await self._look_up(host, port)]
        except (OSError, UnicodeError) as error:
            raise BadImage("the host of its URL is not known") from error
        if not found or not all(map(self._allowed, found)):
            raise BadImage("its URL leads to an address that is not public")
        return await self._tcp.connect_tcp(found[0], port, *given, **options)

    async def _look_up(self, host: str, port: int) -> Any:
        """Return the result of `getaddrinfo`, shared by all fetches of a host.

        A lookup cannot be cancelled; by waiting for the running one, a host uses one thread.
        """
        if (task := self._lookups.get((host, port))) is None:
            look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            task = self._lookups[host, port] = asyncio.ensure_future(self._run(look_up))
            task.add_done_callback(lambda done: self._forget((host, port), done))
        return await asyncio.shield(task)

    def _forget(self, looked_up: tuple[str, int], task: asyncio.Task[Any]) -> None:
        del self._lookups[looked_up]
        if not task.cancelled():
            task.exception()  # Mark as retrieved, even if every fetch was given up.
