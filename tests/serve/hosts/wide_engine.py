"""One process of an engine whose pair has 8 heads: process 0 drives random traffic and keeps what
came of it."""

import pickle
import sys
from pathlib import Path

import numpy as np
from driving import sizes
from engine_proof import EOS
from setups import Setup, pair_on_devices
from toy_tokenizer import ToyTokenizer
from traffic import Run, drive_waves, random_requests

from eagle3_jax.engine import Engine, EngineConfig, EngineStats
from eagle3_jax.engine.programs.processes.call import Peers
from serve.hosts.follow import follow
from serve.hosts.lead import lead
from serve.hosts.runtime import leave
from serve.options.hosts import HostOptions
from serve.pair.notices import say_on_stderr

SETUP = Setup(8, False, "latent", "float32", True)
CONFIG: EngineConfig = sizes(3, page_size=2, num_pages=20, decode_context_parallel_size=2)
"""Two neighbours divide contexts; pages for little more than one full sequence of four slots."""


def build(peers: Peers | None = None) -> Engine:
    """The engine that all processes have."""
    pair = pair_on_devices(SETUP)
    return Engine(*pair, CONFIG, tokenizer=ToyTokenizer(), eos_token_ids=EOS, peers=peers)


def main(hosts: HostOptions, count: int, result: Path) -> int:
    """Ends the process, but for the others' refusals."""
    if not hosts.leads:
        return follow(hosts, {}, SETUP.devices, lambda _: build(), say_on_stderr)
    leader = lead(hosts, {}, SETUP.devices, say_on_stderr)
    engine = build(leader)
    engine.warmup()
    requests = random_requests(np.random.default_rng(1), count)
    run = drive_waves(engine, requests, np.random.default_rng(count))
    came: tuple[Run, EngineStats] = run, engine.stats()
    result.write_bytes(pickle.dumps(came))
    leader.stop()
    leave(0)


if __name__ == "__main__":
    coordinator, plan_port, processes, process, count = map(int, sys.argv[1:6])
    address = ("127.0.0.1", coordinator)
    options = HostOptions(address, plan_port, processes, process)
    sys.exit(main(options, count, Path(sys.argv[6])))
