"""Messages between processes, and the ZeroMQ sockets that carry them.

The leader, process 0 or Ray's driver, has a ROUTER; each other process has a DEALER. ZeroMQ's own
threads exchange heartbeats even while the interpreter is busy, and close a connection without them.
"""

import json
import struct
import time
from enum import IntEnum

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from eagle3_jax.engine.programs.remote import EngineInfo
from serve.options.hosts import HostOptions, read_key

BEAT_MS = 2000
SILENCE_MS = 10_000
"""Silence after which a peer counts as lost; heartbeats are 2 s apart."""
FREE_S = 15.0
"""Time to wait for a port that an engine that just ended may still occupy."""
LINGER_MS = 1000
"""Time to send the last messages when a process ends."""
LARGEST = 2**25
"""Maximum bytes of a message to the leader. The longest holds log-probabilities of the prompts of
all replicas, 1.3 MB per chunk of 8,192 tokens."""
NUMBER = struct.Struct("<I")
"""Number of a question, sent before it and before its answer."""


class Kind(IntEnum):
    """Kind of a message. Texts are UTF-8."""

    HELLO = 1  # the sender's id and facts: a JSON object
    WELCOME = 2  # all processes have arrived and agree
    REFUSED = 3  # reason of a refusal: text
    BEAT = 4  # heartbeat: a ROUTER reports a lost peer only to a send to it
    COMPILED = 5
    CALL = 6  # eagle3_jax.engine.programs.messages
    DRAIN = 7  # asks the leader to stop as if it had received the signal
    STOP = 8  # there will be no more calls
    FAILED = 9  # the sender ends for this reason: text
    ENGINE_INFO = 10  # from process 0 to a leader without devices: a JSON object
    NOTICE = 11  # from process 0 to the user: text
    QUERY = 12  # number and eagle3_jax.engine.programs.messages
    ANSWER = 13  # to the question with this number


class PeerLost(Exception):
    """A process without which this one cannot continue is lost."""


def info_to_json(info: EngineInfo) -> bytes:
    """Encode facts about process 0's engine."""
    return json.dumps(info._asdict()).encode()


def info_from_json(text: bytes) -> EngineInfo:
    """Decode the output of `info_to_json`."""
    fields = json.loads(text)
    return EngineInfo(**fields | {"programs": tuple(fields["programs"])})


def lost(name: str) -> str:
    """Return the error text for a lost peer."""
    return (
        f"lost {name}: its connection broke or was silent for {SILENCE_MS / 1000:g} s, so it has "
        "ended, was killed or has stopped"
    )


class Listener:
    """The leader's socket, open to every process that has the key.

    It listens on the loopback if the coordinator does, else on all addresses, because a pod's name
    may not resolve in the pod. Raises OSError for an unavailable port.
    """

    def __init__(self, hosts: HostOptions):
        pair = _pair(hosts)
        self.socket = _socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # Sends to lost peers fail.
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        self._gate: ThreadAuthenticator | None = None
        if pair is not None:
            self.socket.curve_secretkey, public = pair
            self.socket.curve_server = True
            self._gate = ThreadAuthenticator(self.socket.context)
            self._gate.start()
            self._gate.configure_curve_callback("*", _KeyAuthenticator(public))
        address = hosts.calls_at if hosts.is_local else f"*:{hosts.plan_port}"
        try:
            self.socket.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"can't listen on {address} for calls: {error.strerror}") from error

    def close(self) -> None:
        """Close the socket after the last messages are sent or time out."""
        self.socket.close()
        if self._gate is not None:
            self._gate.stop()
        self.socket.context.term()


def connect(hosts: HostOptions) -> zmq.Socket[bytes]:
    """Return a follower's socket, which `join` connects to the leader."""
    pair = _pair(hosts)
    dealer = _socket(zmq.DEALER)
    dealer.setsockopt(zmq.RECONNECT_IVL, 200)
    if pair is not None:
        dealer.curve_secretkey, dealer.curve_publickey = pair
        dealer.curve_serverkey = pair[1]
    return dealer


def await_free(address: str) -> None:
    """Wait until an address is free; OSError if it still is not after FREE_S."""
    deadline = time.monotonic() + FREE_S
    with zmq.Context() as context, context.socket(zmq.ROUTER) as probe:
        probe.setsockopt(zmq.IPV6, 1)
        while True:
            try:
                probe.bind(f"tcp://{address}")
                return
            except zmq.ZMQError as error:
                if time.monotonic() > deadline:
                    raise OSError(f"can't listen on {address}: {error.strerror}") from error
            time.sleep(0.2)


def _socket(kind: int) -> zmq.Socket[bytes]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.IPV6, 1)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDTIMEO, SILENCE_MS)
    socket.setsockopt(zmq.HEARTBEAT_IVL, BEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENCE_MS)
    return socket


def _pair(hosts: HostOptions) -> tuple[bytes, bytes] | None:
    """Return the secret key and its public key, or None without a key."""
    if hosts.key_file is None:
        return None
    secret = z85.encode(read_key(hosts.key_file))
    return secret, zmq.curve_public(secret)


class _KeyAuthenticator:
    """An authenticator of clients by the key that all processes share."""

    def __init__(self, public: bytes):
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a client's public key is ours; ZeroMQ has verified its secret key."""
        return key == self._public
