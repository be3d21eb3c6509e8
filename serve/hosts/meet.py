"""How processes find each other before anything is loaded, and make sure that they agree."""

import hashlib
import json
import socket
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from serve.hosts.link import SILENCE_S, Kind, Link, PeerLost
from serve.options.hosts import HostOptions
from serve.pair.notices import Say

MEET_S = 300.0
"""All must have come by then; pods of a group may start minutes apart."""
HELLO_S = 10.0
PACKAGES = ("eagle3-jax", "jax", "jaxlib", "llguidance")
WEIGHT_FILES = ("*.safetensors", "*.json")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
Facts = Mapping[str, str]
"""What every process must have alike: what it is called -> its value."""


def gather(hosts: HostOptions, facts: Facts, say: Say) -> dict[int, Link]:
    """Waits, as process 0, for all others; ValueError, which is sent to them, where one differs or
    stays away, OSError where the port can't be had."""
    links: dict[int, Link] = {}
    try:
        with closing(_listen(hosts)) as listener:
            say(f"process 0 of {hosts.num_processes}: waiting for the others at {hosts.calls_at}")
            deadline = time.monotonic() + MEET_S
            while len(links) < hosts.num_processes - 1:
                _admit(listener, hosts, facts, links, deadline, say)
    except ValueError as error:
        for link in links.values():
            with suppress(PeerLost):
                link.send(Kind.REFUSED, str(error).encode())
            link.close()
        raise
    for link in links.values():
        link.send(Kind.WELCOME)
    return links


def join(hosts: HostOptions, facts: Facts) -> Link:
    """Finds process 0; ValueError with its reason where it refuses, PeerLost where it is not."""
    deadline, name = time.monotonic() + MEET_S, f"process 0 ({hosts.calls_at})"
    while True:
        try:
            connection = socket.create_connection((hosts.coordinator[0], hosts.plan_port), HELLO_S)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerLost(f"{name} can't be reached in {MEET_S:g} s: {error}") from error
            time.sleep(0.2)
    link = Link(connection, name)
    hello = {"process": hosts.process_id, "facts": dict(facts)}
    link.send(Kind.HELLO, json.dumps(hello).encode())
    link.patience(MEET_S)
    kind, text = link.receive()
    if kind is Kind.REFUSED:
        link.close()
        raise ValueError(text.decode())
    link.patience(SILENCE_S)
    return link


def _listen(hosts: HostOptions) -> socket.socket:
    """On the loopback where that is the coordinator, else everywhere: names of pods may not resolve
    in the pod itself."""
    host, port = hosts.coordinator[0], hosts.plan_port
    try:
        if host in LOOPBACK:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return socket.create_server((host, port), family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except OSError as error:
        raise OSError(f"can't listen on {host}:{port} for calls: {error.strerror}") from error


def _admit(
    listener: socket.socket,
    hosts: HostOptions,
    facts: Facts,
    links: dict[int, Link],
    deadline: float,
    say: Say,
) -> None:
    """Takes in one process more; what is none is sent away."""
    listener.settimeout(max(0.01, deadline - time.monotonic()))
    try:
        connection, (host, port, *_) = listener.accept()
    except TimeoutError as error:
        missing = [i for i in range(1, hosts.num_processes) if i not in links]
        listed = ", ".join(f"process {i}" for i in missing)
        raise ValueError(f"{listed} did not come to {hosts.calls_at} in {MEET_S:g} s") from error
    link = Link(connection, f"{host}:{port}")
    link.patience(HELLO_S)
    try:
        kind, payload = link.receive()
        hello = json.loads(payload if kind is Kind.HELLO else b"")
        process, theirs = int(hello["process"]), dict(hello["facts"])
    except (PeerLost, ValueError, TypeError, KeyError):
        say(f"note: {link.name} connected and is no process of ours")
        return connection.close()
    link.patience(SILENCE_S)
    link.name = f"process {process} ({host}:{port})"
    if process in links or not 0 < process < hosts.num_processes:
        problem = f"{link.name}: ids must be 1..{hosts.num_processes - 1}, each once"
    else:
        problem = _difference(link.name, facts, theirs)
    if problem:
        link.send(Kind.REFUSED, problem.encode())
        link.close()
        raise ValueError(problem)
    links[process] = link
    say(f"{link.name} is here")


def _difference(name: str, ours: Facts, theirs: Facts) -> str | None:
    differing = [
        f"{fact} ({theirs.get(fact, 'none')} there, {ours.get(fact, 'none')} in process 0)"
        for fact in sorted({*ours, *theirs})
        if theirs.get(fact) != ours.get(fact)
    ]
    return f"{name} differs in {'; '.join(differing)}" if differing else None


def facts(
    hosts: HostOptions, model: Path, draft: Path | None, settings: Mapping[str, object]
) -> Facts:
    """Versions, checkpoints by what lies in their directories, and settings by their values; None
    is left out. The directories' names may differ. Raises OSError for one that can't be read."""
    files = {"model": model} | ({"draft": draft} if draft else {})
    return {
        **{package: _version(package) for package in PACKAGES},
        "number of processes": str(hosts.num_processes),
        **{f"files of the {name}": _digest(directory) for name, directory in files.items()},
        **{name: str(value) for name, value in settings.items() if value is not None},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _digest(directory: Path) -> str:
    """Of names, sizes of weights and the small files' content: enough to tell checkpoints apart."""
    found = hashlib.sha256()
    for pattern in WEIGHT_FILES:
        for path in sorted(directory.glob(pattern)):
            content = path.read_bytes() if path.suffix == ".json" else b""
            found.update(f"{path.name} {path.stat().st_size}\n".encode() + content)
    return found.hexdigest()[:12]
