"""The process from which workers are forked, and the loop of a worker.

Some work on hostile data takes minutes, fills the memory or overflows the stack, in one call that
nothing can interrupt. In a separate process the kernel can end it. This module runs as a file, so
that it imports little: `process.py FD MODULE`. The first line of standard input is the server's
`sys.path` as JSON, the rest is the setup. `MODULE.prepare(setup)` returns the function that answers
questions. FD is a socket that delivers the socket of each new worker.
"""

import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable

QUESTION = struct.Struct("!Qdqq")
"""Header of a question: its bytes, CPU seconds, bytes of memory, niceness."""
ANSWER = struct.Struct("!?Q")
"""Header of an answer: False for a traceback, and its bytes."""
Answer = Callable[[bytes], bytes]


def _address_space() -> int:
    """Return the bytes that this process has mapped."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit_memory(most: int) -> None:
    if sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def work(connection: socket.socket, answer: Answer) -> None:
    """Answer questions until the server closes the connection or a limit ends this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    before = _address_space() if sys.platform == "linux" else 0
    with connection.makefile("rwb") as stream:
        while head := stream.read(QUESTION.size):
            size, cpu_seconds, memory_bytes, niceness = QUESTION.unpack(head)
            question = stream.read(size)
            os.nice(max(0, niceness - os.nice(0)))
            _limit_memory(before + memory_bytes)
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)  # The signal ends the process.
            try:
                good, found = True, answer(question)
            except MemoryError:
                return
            except Exception:
                good, found = False, traceback.format_exc().encode(errors="replace")
            signal.setitimer(signal.ITIMER_PROF, 0)
            stream.write(ANSWER.pack(good, len(found)))
            stream.write(found)
            stream.flush()


def serve(control: socket.socket, answer: Answer) -> None:
    """Fork a worker for each connection that arrives, until the server has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The kernel reaps the workers.
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return
        with socket.socket(fileno=descriptors[0]) as connection:
            if os.fork() == 0:
                try:
                    control.close()
                    work(connection, answer)
                finally:
                    os._exit(0)


def main() -> None:
    """Prepare the work, then serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    sys.path[:] = json.loads(sys.stdin.buffer.readline())
    setup = sys.stdin.buffer.read()
    serve(control, importlib.import_module(sys.argv[2]).prepare(setup))


if __name__ == "__main__":
    main()
