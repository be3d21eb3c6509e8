"""What a leader without devices waits for an answer: a question to process 0's thread and back,
with nothing to compute between."""

import time
from dataclasses import replace
from multiprocessing.connection import Connection

import numpy as np

from eagle3_jax.engine.programs.processes.questions import Asked, about_output, to_bytes
from serve.options.hosts import DRIVER, HostOptions

OUTPUT = np.zeros((64, 6), np.int32)
"""What a round of 64 sequences and three drafts puts out."""


def driving(hosts: HostOptions) -> HostOptions:
    """Of a leader without devices, before one process."""
    return replace(hosts, num_processes=1, process_id=DRIVER, driven=True)


def ask(hosts: HostOptions, questions: int, every_s: float) -> list[int]:
    """Nanoseconds that each answer took."""
    from serve.hosts.drive import DeviceLeader  # Needs the extra hosts.
    from serve.hosts.meet import gather
    from serve.hosts.messages import Listener

    listener = Listener(hosts)
    leader = DeviceLeader(listener, gather(listener.socket, hosts, {}, _nothing), _nothing)
    took: list[int] = []
    for _ in range(questions):
        began = time.monotonic_ns()
        leader.ask(about_output(0))()
        took.append(time.monotonic_ns() - began)
        time.sleep(every_s)
    leader.stop()
    return took


def answer(hosts: HostOptions, done: Connection, _: int) -> None:
    """As process 0, until the leader stops."""
    from serve.hosts.follow import Follower
    from serve.hosts.meet import join
    from serve.hosts.messages import connect

    own = replace(hosts, process_id=0)
    dealer = connect(own)
    follower = Follower(dealer, join(dealer, own, {}), _nothing)
    for message in follower.calls():
        if isinstance(message, Asked):
            message.answer(to_bytes(OUTPUT))
    done.send(None)


def _nothing(_: str) -> None:
    pass
