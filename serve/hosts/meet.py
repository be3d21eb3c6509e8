"""How processes find each other before anything is loaded, and make sure that they agree."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from serve.hosts.facts import Facts, difference, from_json, to_json
from serve.hosts.messages import Kind, PeerLost
from serve.options.hosts import HostOptions
from serve.pair.notices import Say

MEET_S = 300.0
"""All must have come by then; pods of a group may start minutes apart."""
Peer = tuple[bytes, str]
"""A process as the ROUTER knows it, and its name to users."""
HANDSHAKES = 3
REFUSALS = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
"""Of a key; of most wrong ones it is only seen that they fail whenever they are tried."""
EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | REFUSALS[0]
    | REFUSALS[1]
)


def gather(
    router: zmq.Socket[bytes], hosts: HostOptions, facts: Facts, say: Say
) -> dict[int, Peer]:
    """Waits, as process 0, for all others; ValueError, which is sent to them, where one differs or
    stays away."""
    peers: dict[int, Peer] = {}
    routes: list[bytes] = []
    say(f"process 0 of {hosts.num_processes}: waiting for the others at {hosts.calls_at}")
    try:
        for route, address, process, theirs in _hellos(router, hosts, peers, say):
            routes.append(route)
            name = f"process {process} ({address})"
            if process in peers or not 0 < process < hosts.num_processes:
                raise ValueError(f"{name}: ids must be 1..{hosts.num_processes - 1}, each once")
            if problem := difference(name, facts, theirs):
                raise ValueError(problem)
            peers[process] = (route, name)
            say(f"{name} is here")
            if len(peers) == hosts.num_processes - 1:
                break
    except ValueError as error:
        _tell(router, routes, Kind.REFUSED, str(error).encode())
        raise
    _tell(router, routes, Kind.WELCOME)
    return peers


def join(dealer: zmq.Socket[bytes], hosts: HostOptions, facts: Facts) -> str:
    """Finds process 0, and returns its name; ValueError with its reason where it refuses, PeerLost
    where it is not to be found."""
    name = f"process 0 ({hosts.calls_at})"
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
    raise ValueError(f"{hosts.calls_at} answers, but is no process 0 of ours")


def _await_handshake(monitor: zmq.Socket[bytes], name: str) -> None:
    """Returns when process 0 is there and has our key; ValueError or PeerLost where it has not or
    is not."""
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
    router: zmq.Socket[bytes], hosts: HostOptions, peers: Mapping[int, Peer], say: Say
) -> Iterator[tuple[bytes, str, int, Facts]]:
    """Route, address, process and facts of each that comes; others are passed over, and said once
    an address."""
    deadline, strangers = time.monotonic() + MEET_S, set[str]()
    while (left := deadline - time.monotonic()) > 0 and router.poll(_ms(left)):
        route, *frames = router.recv_multipart(copy=False)
        address = str(route.get("Peer-Address")).removeprefix("::ffff:")
        if hello := _hello([frame.bytes for frame in frames]):
            yield route.bytes, address, *hello
        elif address not in strangers:
            strangers.add(address)
            say(f"note: {address} sent something and is no process of ours")
    missing = [f"process {i}" for i in range(1, hosts.num_processes) if i not in peers]
    raise ValueError(f"{', '.join(missing)} did not come to {hosts.calls_at} in {MEET_S:g} s")


def _hello(frames: list[bytes]) -> tuple[int, Facts] | None:
    if len(frames) == 2 and frames[0] == bytes([Kind.HELLO]):
        return from_json(frames[1])
    return None


def _tell(
    router: zmq.Socket[bytes], routes: Iterable[bytes], kind: Kind, payload: bytes = b""
) -> None:
    for route in routes:
        with suppress(zmq.ZMQError):  # It is gone.
            router.send_multipart([route, bytes([kind]), payload])


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
