"""Accepts connections, never more than there are descriptors for.

asyncio accepts whatever comes until descriptors run out, and then tries again without rest.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from contextlib import suppress

from serve.asgi.connection import Waiting

logger = logging.getLogger(__name__)
BACKLOG = 2048
"""Connections that the kernel holds until they are accepted."""
GRACE_S = 0.2
"""For the request of a connection to arrive, before another one may take its place."""
LOOK_S = 0.01
RETRY_S = 1.0


async def accept(
    listener: socket.socket,
    limit: int,
    opened: Collection[asyncio.Protocol],
    waiting: Waiting,
    make_protocol: Callable[[], asyncio.Protocol],
) -> None:
    """Accepts connections for ever, as long as fewer than `limit` are opened.

    Where one more comes, the one that has waited longest for a request gives way; where all have
    requests, the new one waits, and those behind it.
    """
    listener.setblocking(False)
    listener.listen(BACKLOG)
    loop = asyncio.get_running_loop()
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
            if len(opened) >= limit:
                logger.warning("%d connections are open, as many as descriptors allow", limit)
            while len(opened) >= limit:
                _give_way(waiting, loop.time() - GRACE_S)
                await asyncio.sleep(LOOK_S)
            with suppress(OSError):  # It is gone already.
                await loop.connect_accepted_socket(make_protocol, accepted)
        except asyncio.CancelledError:
            accepted.close()
            raise


def _give_way(waiting: Waiting, before: float) -> None:
    connection, since = next(iter(waiting.items()), (None, before))
    if connection is not None and since < before:
        connection.shutdown()
