"""A detour of JAX's coordination: a connection to process 0 that does not break when it does.

JAX's client ends its process with an abort in the same millisecond in which its connection to the
coordinator breaks. It connects to this relay instead, in its own process, which passes bytes on and
keeps quiet when there are no more; `Link` then says who is lost, and JAX would only notice after
its heartbeat timeout of 100 seconds.
"""

import socket
import threading
import time
from contextlib import suppress

RETRY_S = 0.1
GIVE_UP_S = 120.0


def relay(target: tuple[str, int]) -> str:
    """Starts one, of daemon threads; the loopback address that stands for the target."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, target), name="relay", daemon=True).start()
    return f"127.0.0.1:{listener.getsockname()[1]}"


def _accept(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:  # as long as the process
        near, _ = listener.accept()
        threading.Thread(target=_serve, args=(near, target), name="relay", daemon=True).start()


def _serve(near: socket.socket, target: tuple[str, int]) -> None:
    far = _connect(target)
    if far is None:
        return near.close()
    for pair in ((near, far), (far, near)):
        for end in pair:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_pass_on, args=pair, name="relay", daemon=True).start()


def _connect(target: tuple[str, int]) -> socket.socket | None:
    """The coordinator may start later than this process."""
    deadline = time.monotonic() + GIVE_UP_S
    while time.monotonic() < deadline:
        with suppress(OSError):
            return socket.create_connection(target)
        time.sleep(RETRY_S)
    return None


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    """Until the source ends; the sink does not hear of it."""
    with source, suppress(OSError):
        while data := source.recv(2**16):
            sink.sendall(data)
