"""Tries grammars in processes with limits before the server compiles them."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

from eagle3_jax.engine.grammars.interface import (
    GRAMMAR_BYTES,
    Footprint,
    GrammarsBusyError,
    Vocabulary,
)
from serve.engine import grammar_process

CPU_SECONDS = 1.0
WALL_SECONDS = 20.0
"""What a second of a processor may take where many wait for one."""
MEMORY_BYTES = 256 * 2**20
"""While it compiles; what it holds afterwards is another matter."""
TOO_COMPLEX = (
    f"too complex: compiling it takes more than {CPU_SECONDS:g} s of a processor or "
    f"{MEMORY_BYTES >> 20} MiB; it needs fewer rules or properties, or smaller ranges and repeats"
)


class GrammarTrials:
    """A Trial: forks a process for each grammar, and learns what became of it; any thread's."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, grammar: str, limits: Mapping[str, int]) -> Footprint:
        """See Trial. Raises GrammarsBusyError when nobody can say."""
        asked = {
            "grammar": grammar,
            "limits": dict(limits),
            "cpu_seconds": CPU_SECONDS,
            "memory_bytes": MEMORY_BYTES,
        }
        answer = self._ask(f"{json.dumps(asked)}\n".encode())
        if (error := answer.get("error")) is not None:
            raise ValueError(error)
        footprint = Footprint(**answer)
        if footprint.held_bytes > GRAMMAR_BYTES:
            raise ValueError(
                f"too complex: compiled it holds {footprint.held_bytes >> 20} MiB, and may hold "
                f"{GRAMMAR_BYTES >> 20}; it needs fewer rules or properties, or smaller ranges"
            )
        return footprint

    def start(self) -> None:
        """Starts the process that others are forked from, before anybody waits for it. It ends when
        this one has closed its socket."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            if self._process is not None:
                self._control.close()
            self._control, self._process = _start(self._vocabulary)

    def _ask(self, question: bytes) -> dict[str, int]:
        self.start()
        ours, theirs = socket.socketpair()
        with ours, theirs, ours.makefile("rb") as answers:
            ours.settimeout(WALL_SECONDS)
            try:
                with self._lock:
                    socket.send_fds(self._control, [b"t"], [theirs.fileno()])
                theirs.close()
                ours.sendall(question)
                if (answer := answers.readline()).endswith(b"\n"):
                    return json.loads(answer)
                raise EOFError
            except TimeoutError as error:
                raise GrammarsBusyError("the machine is too busy to compile grammars") from error
            except (EOFError, ConnectionError) as error:
                if self._process is None or self._process.poll() is not None:
                    raise GrammarsBusyError("the process that tries grammars has ended") from error
                raise ValueError(TOO_COMPLEX) from error


def _start(vocabulary: Vocabulary) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", grammar_process.__file__, f"{theirs.fileno()}"],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    head = {
        "lengths": [len(token) for token in vocabulary.tokens],
        "special_ids": list(vocabulary.special_ids),
        "eos_ids": list(vocabulary.eos_ids),
    }
    assert process.stdin
    with process.stdin as vocabulary_file:
        vocabulary_file.write(f"{json.dumps(head)}\n".encode() + b"".join(vocabulary.tokens))
    return ours, process
