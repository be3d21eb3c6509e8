"""Run eagle3-serve in its own process, for benchmarks that send it HTTP requests."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType

SERVER = (sys.executable, "-P", "-c", "import sys; from serve.cli import main; sys.exit(main())")
READY_TIMEOUT_S = 1800.0


@contextmanager
def serving(
    flags: Sequence[str],
    log: str | Path = os.devnull,
    timeout_s: float = READY_TIMEOUT_S,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a server with these flags on a free port, and yield the process and its URL once ready.

    It uses the caller's cores, logs to `log` and has `environment` besides the caller's. Raises
    OSError if it ends or is not ready in time.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with open(log, "wb") as said:
        argv = [*SERVER, *flags, "--port", str(port)]
        process = subprocess.Popen(argv, stderr=said, env={**os.environ, **environment})
    try:
        _wait_ready(port, process, timeout_s)
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(port: int, process: subprocess.Popen[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError), closing(HTTPConnection("127.0.0.1", port)) as connection:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.3)
    if process.returncode is not None:
        raise OSError(f"the server ended with status {process.returncode} before it was ready")
    raise OSError(f"the server was not ready within {timeout_s:g} s")


def metric(text: str, name: str, **labels: str) -> float:
    """Return the value of a metric, by its full name, in a /metrics text."""
    others = "".join(rf'[^}}]*{key}="{value}"' for key, value in labels.items())
    found = re.search(rf"^{name}\{{{others}[^}}]*\}} ([-+0-9.eE]+)$", text, re.MULTILINE)
    assert found, f"/metrics has no {name}"
    return float(found[1])
