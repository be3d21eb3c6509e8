"""Meet the processes before anything is loaded, and check that they agree."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from serve.hosts.facts import Facts, difference, from_json, to_json
from serve.hosts.messages import Kind, PeerLost
from serve.options.hosts import HostOptions
from serve.pair.notices import Notify

MEET_S = 300.0
"""Timeout for all processes to arrive; pods of a group may start minutes apart."""
LOOK_MS = 250
"""Interval at which a waiting leader checks `abort_reason`."""
Peer = tuple[bytes, str]
"""A process's ROUTER identity, and its name in messages."""
HANDSHAKES = 3
REFUSALS = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
"""Events of a rejected key. Most wrong keys show only as handshakes that fail every time."""
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | REFUSALS[0]
    | REFUSALS[1]
)


def gather(
    router: zmq.Socket[bytes],
    hosts: HostOptions,
    facts: Facts,
    notify: Notify,
    abort_reason: Callable[[], str | None] = lambda: None,
) -> dict[int, Peer]:
    """Wait, as the leader, for all other processes.

    A ValueError (one differs or is missing, or `abort_reason` gives a reason) is sent to them too.
    """
    peers: dict[int, Peer] = {}
    routes: list[bytes] = []
    notify(f"{hosts.leader}: waiting for the others at {hosts.calls_at}")
    try:
        for route, address, process, theirs in _hellos(router, hosts, peers, notify, abort_reason):
            routes.append(route)
            name = f"process {process} ({address})"
            if process in peers or process not in hosts.followers:
                first, last = hosts.followers[0], hosts.followers[-1]
                raise ValueError(f"{name}: ids must be {first}..{last}, each once")
            if problem := difference(name, facts, theirs, hosts.leader):
                raise ValueError(problem)
            peers[process] = (route, name)
            notify(f"{name} is here")
            if len(peers) == len(hosts.followers):
                break
    except ValueError as error:
        _send_end(router, routes, Kind.REFUSED, str(error).encode())
        raise
    _send_end(router, routes, Kind.WELCOME)
    return peers


def join(dealer: zmq.Socket[bytes], hosts: HostOptions, facts: Facts) -> str:
    """Meet the leader and return its name; ValueError if it refuses, PeerLost if not found."""
    name = f"{hosts.leader} ({hosts.calls_at})"
    monitor = dealer.get_monitor_socket(EVENTS)
    dealer.connect(f"tcp://{hosts.calls_at}")
    _await_handshake(monitor, name)
    dealer.send_multipart([bytes([Kind.HELLO]), to_json(hosts.process_id, facts)])
    poller = zmq.Poller()
    poller.register(dealer, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    ready = dict(poller.poll(_ms(MEET_S)))
    if dealer not in ready:
        raise PeerLost(f"{name} {'is gone' if ready else f'did not answer in {MEET_S:g} s'}")
    match dealer.recv_multipart():
        case [kind, _] if kind == bytes([Kind.WELCOME]):
            return name
        case [kind, reason] if kind == bytes([Kind.REFUSED]):
            raise ValueError(reason.decode(errors="replace"))
    raise ValueError(f"{hosts.calls_at} answers, but is not {hosts.leader}")


def _await_handshake(monitor: zmq.Socket[bytes], name: str) -> None:
    """Wait until the leader accepts our key; ValueError if not, PeerLost without a leader."""
    deadline, failures = time.monotonic() + MEET_S, 0
    while monitor.poll(_ms(deadline - time.monotonic())):
        event = recv_monitor_message(monitor)["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            return
        failures += event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if event in REFUSALS or failures == HANDSHAKES:
            raise ValueError(
                f"{name} has another key: --hosts-key-file must be the same everywhere"
            )
    raise PeerLost(f"{name} can't be reached in {MEET_S:g} s")


def _hellos(
    router: zmq.Socket[bytes],
    hosts: HostOptions,
    peers: Mapping[int, Peer],
    notify: Notify,
    abort_reason: Callable[[], str | None],
) -> Iterator[tuple[bytes, str, int, Facts]]:
    """Yield route, address, id and facts of arriving processes; report strangers once."""
    deadline, strangers = time.monotonic() + MEET_S, set[str]()
    while (left := deadline - time.monotonic()) > 0:
        if (reason := abort_reason()) is not None:
            raise ValueError(reason)
        if not router.poll(min(_ms(left), LOOK_MS)):
            continue
        route, *frames = router.recv_multipart(copy=False)
        address = str(route.get("Peer-Address")).removeprefix("::ffff:")
        if hello := _hello([frame.bytes for frame in frames]):
            yield route.bytes, address, *hello
        elif address not in strangers:
            strangers.add(address)
            notify(f"note: {address} sent something and is no process of ours")
    missing = [f"process {i}" for i in hosts.followers if i not in peers]
    raise ValueError(
        f"{', '.join(missing)} did not connect to {hosts.calls_at} within {MEET_S:g} s"
    )


def _hello(frames: list[bytes]) -> tuple[int, Facts] | None:
    if len(frames) == 2 and frames[0] == bytes([Kind.HELLO]):
        return from_json(frames[1])
    return None


def _send_end(
    router: zmq.Socket[bytes], routes: Iterable[bytes], kind: Kind, payload: bytes = b""
) -> None:
    for route in routes:
        with suppress(zmq.ZMQError):  # The process is gone.
            router.send_multipart([route, bytes([kind]), payload])


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
