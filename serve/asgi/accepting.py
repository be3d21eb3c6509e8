"""Accepts connections, also by TLS, and never more than file descriptors allow.

asyncio accepts connections until descriptors run out and then retries in a busy loop. Every
connection takes one descriptor, of which a process has a limited number.
"""

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from serve.asgi.connection import Waiting

logger = logging.getLogger(__name__)
MOST = 65_536
"""Descriptor limit. More would be useless here, and some libraries iterate over all of them."""
BACKLOG = 2048
"""Connections that the kernel queues before they are accepted."""
GRACE_S = 0.2
"""Time for the first request of a connection before another connection may replace it."""
HANDSHAKE_S = 10.0
LOOK_S = 0.01
RETRY_S = 1.0


def raise_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit, or to MOST."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room_for_connections() -> int:
    """Return how many connections the process may have.

    Open descriptors, and a quarter of the limit for later ones, are left out. Raises OSError if
    that leaves no room.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MOST if soft == resource.RLIM_INFINITY else soft
    opened = len(os.listdir("/dev/fd"))
    room = limit - limit // 4 - opened
    if room < 1:
        raise OSError(
            f"{limit} descriptors are too few: {opened} are open before the first connection, and "
            "a quarter is kept for files; allow more (ulimit -n)"
        )
    return room


async def accept(
    listener: socket.socket,
    limit: int,
    opened: Collection[asyncio.Protocol],
    waiting: Waiting,
    make_protocol: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
) -> None:
    """Accept connections forever, while fewer than `limit` are open.

    A connection over the limit replaces the one that has waited longest for a request. If all have
    requests, it waits, and so do later ones. TLS handshakes run concurrently.
    """
    listener.setblocking(False)
    listener.listen(BACKLOG)
    loop, shaking = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    while True:
        try:
            accepted, _ = await loop.sock_accept(listener)
        except ConnectionAbortedError:
            continue
        except OSError as error:
            logger.warning("can't accept connections: %s", error)
            await asyncio.sleep(RETRY_S)
            continue
        try:
            if len(opened) + len(shaking) >= limit:
                logger.warning("%d connections are open, as many as descriptors allow", limit)
            while len(opened) + len(shaking) >= limit:
                _give_way(waiting, loop.time() - GRACE_S)
                await asyncio.sleep(LOOK_S)
            connecting = _connect(accepted, make_protocol, tls)
            if tls is None:
                await connecting
            else:
                shaking.add(handshake := asyncio.create_task(connecting))
                handshake.add_done_callback(shaking.discard)
        except asyncio.CancelledError:
            accepted.close()
            raise


async def _connect(
    accepted: socket.socket,
    make_protocol: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None,
) -> None:
    limit = {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": HANDSHAKE_S}
    with suppress(OSError):  # The client is gone already, or does not speak TLS.
        await asyncio.get_running_loop().connect_accepted_socket(make_protocol, accepted, **limit)


def _give_way(waiting: Waiting, before: float) -> None:
    connection, since = next(iter(waiting.items()), (None, before))
    if connection is not None and since < before:
        connection.shutdown()


def tls_context(
    certfile: Path, keyfile: Path | None, ca_certs: Path | None, cert_reqs: int
) -> ssl.SSLContext:
    """Return the TLS context. Raises OSError that names the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    read = certfile
    try:
        context.load_cert_chain(certfile, keyfile, password=_refuse_password)
        if ca_certs is not None:
            read = ca_certs
            context.load_verify_locations(ca_certs)
    except (OSError, ValueError) as error:
        files = f"{read}" if read is ca_certs or keyfile is None else f"{certfile}, {keyfile}"
        raise OSError(f"can't read {files} for HTTPS: {error}") from error
    context.verify_mode = ssl.VerifyMode(cert_reqs)
    return context


def _refuse_password() -> NoReturn:
    """Refuse encrypted keys: the library would otherwise prompt on the terminal."""
    raise ValueError("the key is encrypted; give one that is not")
