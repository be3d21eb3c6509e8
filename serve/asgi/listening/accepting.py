"""Accepts connections, never more than there are descriptors for.

asyncio accepts whatever comes until descriptors run out, and then tries again without rest. Every
connection is one, and a process may have only so many.
"""

import asyncio
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Collection
from contextlib import suppress

from serve.asgi.listening.connection import Waiting

logger = logging.getLogger(__name__)
MOST = 65_536
"""More descriptors are of no use here, and some libraries walk through all that there may be."""
BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""
GRACE_S = 0.2
"""For the request of a connection to arrive, before another one may take its place."""
HANDSHAKE_S = 10.0
LOOK_S = 0.01
RETRY_S = 1.0


def raise_limit() -> None:
    """Raises the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room_for_connections() -> int:
    """How many connections the process may have besides what it has open, and a quarter of all for
    what it will open.

    Raises OSError where that is none.
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
    """Accepts connections for ever, as long as fewer than `limit` are opened; with `tls` encrypted
    ones, whose handshakes nobody else waits for.

    Where one more comes, the one that has waited longest for a request gives way; where all have
    requests, the new one waits, and those behind it.
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
    with suppress(OSError):  # It is gone already, or speaks no TLS.
        await asyncio.get_running_loop().connect_accepted_socket(make_protocol, accepted, **limit)


def _give_way(waiting: Waiting, before: float) -> None:
    connection, since = next(iter(waiting.items()), (None, before))
    if connection is not None and since < before:
        connection.shutdown()
