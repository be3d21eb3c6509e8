"""Processes that run a command's `main`, forked from one that has imported JAX and the package.

Importing takes 4 to 7 seconds of a processor, the fork none. What is about a fresh interpreter
(lazy imports, console scripts, a signal while it starts) needs `subprocess`.
"""

import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from probe import free_port, status_of, wait_for

IMPORTED = ["serve.launch", "serve.train.draft", "serve.hosts.lead", "serve.hosts.follow"]
IMPORTED += ["convert.conversion.conversion", "httpx", "openai", "pytest"]
"""By the process that is forked. None may start XLA's client: its threads don't survive a fork."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(IMPORTED)


def _run(
    module: str,
    argv: Sequence[str],
    stdout: Connection | None,
    environment: Mapping[str, str],
    log: Path | None,
    descriptors: int | None,
    ignores_sighup: bool,
) -> None:
    """End the process with the status of `main`.

    JAX's variables are set as its options, which it read when it was imported.
    """
    import jax

    signal.signal(signal.SIGHUP, signal.SIG_IGN if ignores_sighup else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    os.environ.update(environment)
    for name, value in environment.items():
        if name.startswith("JAX_"):
            jax.config.update(name.lower(), int(value) if value.isdigit() else value)
    if log:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    if stdout:
        os.dup2(stdout.fileno(), 1)
    sys.argv = [module, *argv]
    sys.exit(importlib.import_module(module).main(argv))


class Forked:
    """A process of `module.main(argv)`, with the methods of `subprocess.Popen`.

    log: the file of its standard error. descriptors: how many files it may open. piped: what it
    prints is read from `stdout`, which ends with the block; else it is lost.
    """

    def __init__(
        self,
        module: str,
        argv: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        descriptors: int | None = None,
        piped: bool = False,
    ) -> None:
        ignores_sighup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        reader, writer = CONTEXT.Pipe(duplex=False) if piped else (None, None)
        settings = environment or {}, log, descriptors, ignores_sighup
        self._process = CONTEXT.Process(target=_run, args=(module, list(argv), writer, *settings))
        self._process.start()
        self.pid = self._process.pid or 0
        self.stdout: IO[str] | None = None
        if reader and writer:
            writer.close()
            self.stdout = os.fdopen(os.dup(reader.fileno()))
            reader.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        status = self.returncode
        assert status is not None, f"the process has not ended within {timeout} s"
        return status

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        if self.stdout:
            self.stdout.close()


@contextmanager
def serving(
    flags: Sequence[str], timeout_s: float = 300.0, module: str = "serve.cli"
) -> Iterator[tuple[Forked, str]]:
    """An eagle3-serve with these flags on a free port, which is ready, and its address. module: the
    one whose `main` serves."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Forked(module, [*flags, "--port", f"{port}"]) as process:

        def ready() -> bool:
            assert process.poll() is None, f"it ended with {process.returncode}"
            return status_of(f"{url}/health") == 200

        try:
            wait_for(ready, timeout_s, every_s=0.1)
            yield process, url
        finally:
            process.terminate()
