"""A server that answers every request with given bytes, in given pieces."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from eagle3_tools.bench.load.http_client import Address


@asynccontextmanager
async def answering(*pieces: bytes) -> AsyncIterator[Address]:
    """Serves `pieces`, each sent by itself, then closes the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0.002)
        finally:
            writer.close()
            done.release()

    done = asyncio.Semaphore(0)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1], tls=False)
        await done.acquire()
        await asyncio.sleep(0)


def chunked(parts: Sequence[bytes]) -> list[bytes]:
    """An HTTP answer whose body comes in these chunks."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return [head, *(b"%x\r\n%s\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]
