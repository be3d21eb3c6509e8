"""What processes tell each other, and the ZeroMQ sockets over which they do.

Who leads, process 0 or Ray's driver, has a ROUTER, each other process a DEALER. ZeroMQ's own
threads beat and answer beats, whatever the interpreter is busy with, and close a connection on
which none come.
"""

import time
from enum import IntEnum

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from serve.options.hosts import HostOptions, read_key

BEAT_MS = 2000
SILENCE_MS = 10_000
"""After so long without a byte a peer counts as lost; beats are 2 s apart."""
FREE_S = 15.0
"""How long a port may be taken, by what an engine that has just ended leaves behind."""
LINGER_MS = 1000
"""For last words, when a process ends."""
LARGEST = 2**25
"""Bytes of a message to who leads. The longest has log-probabilities of the prompts of all
replicas, 1.3 MB for each chunk of 8,192 tokens."""


class Kind(IntEnum):
    """What a message says. Texts are UTF-8."""

    HELLO = 1  # who I am and what I would run: a JSON object
    WELCOME = 2  # all are here and agree
    REFUSED = 3  # why not: text
    BEAT = 4  # nothing: a ROUTER tells that a peer is gone only to who sends it something
    COMPILED = 5
    CALL = 6  # eagle3_jax.engine.programs.processes.call
    DRAIN = 7  # asks who leads to stop as if it had the signal itself
    STOP = 8  # there will be no more calls
    FAILED = 9  # the sender ends because of this: text
    BUILT = 10  # of process 0, to who has no devices: a JSON object (serve.hosts.built)
    SAID = 11  # by process 0, for users: text
    ASK = 12  # its number, and eagle3_jax.engine.programs.processes.questions
    ANSWER = 13  # to the question of this number


class PeerLost(Exception):
    """A process that this one can't go on without is gone."""


def lost(name: str) -> str:
    """What is said of a peer that is gone."""
    return (
        f"lost {name}: its connection broke or was silent for {SILENCE_MS / 1000:g} s, so it has "
        "ended, was killed or has stopped"
    )


class Listener:
    """The leader's socket, for whoever has the key; on the loopback where that is the coordinator,
    else everywhere: names of pods may not resolve in the pod itself.

    Raises OSError for a port that can't be had.
    """

    def __init__(self, hosts: HostOptions):
        pair = _pair(hosts)
        self.socket = _socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # A send to who is gone fails.
        self.socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
        self._gate: ThreadAuthenticator | None = None
        if pair is not None:
            self.socket.curve_secretkey, public = pair
            self.socket.curve_server = True
            self._gate = ThreadAuthenticator(self.socket.context)
            self._gate.start()
            self._gate.configure_curve_callback("*", _Known(public))
        address = hosts.calls_at if hosts.is_local else f"*:{hosts.plan_port}"
        try:
            self.socket.bind(f"tcp://{address}")
        except zmq.ZMQError as error:
            self.close()
            raise OSError(f"can't listen on {address} for calls: {error.strerror}") from error

    def close(self) -> None:
        """Returns when last words are sent, or can't be."""
        self.socket.close()
        if self._gate is not None:
            self._gate.stop()
        self.socket.context.term()


def connect(hosts: HostOptions) -> zmq.Socket[bytes]:
    """Another process's socket; it connects when the leader is there."""
    pair = _pair(hosts)
    dealer = _socket(zmq.DEALER)
    dealer.setsockopt(zmq.RECONNECT_IVL, 200)
    if pair is not None:
        dealer.curve_secretkey, dealer.curve_publickey = pair
        dealer.curve_serverkey = pair[1]
    return dealer


def await_free(address: str) -> None:
    """Returns when nobody listens there; OSError where somebody still does after FREE_S."""
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
    """The secret key, if there is one, and the public one that follows from it."""
    if hosts.key_file is None:
        return None
    secret = z85.encode(read_key(hosts.key_file))
    return secret, zmq.curve_public(secret)


class _Known:
    """Lets in who has the key: all processes share it."""

    def __init__(self, public: bytes):
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether the public key of a client that has the secret one, as ZeroMQ made sure, is
        ours."""
        return key == self._public
