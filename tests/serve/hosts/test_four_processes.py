"""Four processes of two devices, whose neighbours divide contexts, under random traffic.

Run as a script this is one of the processes: process 0 drives the traffic and keeps its run.
"""

import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from driving import sizes
from engine_proof import EOS
from probe import free_port
from setups import Setup, pair_on_devices
from several_processes import TESTS
from toy_tokenizer import ToyTokenizer
from traffic import Run, drive_waves, random_requests
from wide_pair import wide_target
from world import Models, World

from eagle3_jax.engine import Engine, EngineConfig, EngineStats
from eagle3_jax.engine.programs.messages import Peers
from serve.hosts.follow import follow
from serve.hosts.lead import lead
from serve.hosts.runtime import exit_now
from serve.options.hosts import HostOptions
from serve.pair.notices import print_to_stderr

SETUP = Setup(8, False, "latent", "float32", True)
CONFIG: EngineConfig = sizes(3, page_size=2, num_pages=20, decode_context_parallel_size=2)
"""Two neighbours divide contexts; pages for little more than one full sequence of four slots."""
PROCESSES, DEVICES = 4, 2
REQUESTS = 200
LONGEST_S = 3600
"""Two cores take turns at eight devices, whose collectives wait for each other."""
FOLDERS = ("", "eagle3_jax", "eagle3_jax/sharded", "proofs", "serve", "serve/hosts", "worlds")


def build(peers: Peers | None = None) -> Engine:
    """The engine that all processes have."""
    pair = pair_on_devices(SETUP)
    return Engine(*pair, CONFIG, tokenizer=ToyTokenizer(), eos_token_ids=EOS, peers=peers)


def main(hosts: HostOptions, count: int, result: Path) -> int:
    """One of the processes; process 0 ends in `exit_now`."""
    if not hosts.leads:
        return follow(hosts, {}, SETUP.devices, lambda _: build(), print_to_stderr)
    leader = lead(hosts, {}, SETUP.devices, print_to_stderr)
    engine = build(leader)
    engine.warmup()
    requests = random_requests(np.random.default_rng(1), count)
    run = drive_waves(engine, requests, np.random.default_rng(count))
    result.write_bytes(pickle.dumps((run, engine.stats())))
    leader.stop()
    exit_now(0)


def driven(directory: Path, count: int) -> tuple[Run, EngineStats]:
    """By all processes; each must end with 0."""
    paths = [str(TESTS.parent), *(str(TESTS / folder) for folder in FOLDERS)]
    environment = os.environ | {"PYTHONPATH": ":".join(paths)}
    environment |= {"JAX_NUM_CPU_DEVICES": f"{DEVICES}", "JAX_PLATFORMS": "cpu"}
    result = directory / "driven"
    shared = [sys.executable, __file__, f"{free_port()}", f"{free_port()}", f"{PROCESSES}"]
    running = [
        subprocess.Popen([*shared, f"{process}", f"{count}", str(result)], env=environment)
        for process in range(PROCESSES)
    ]
    try:
        assert [process.wait(LONGEST_S) for process in running] == [0] * PROCESSES
    finally:
        for process in running:
            process.kill()
    return pickle.loads(result.read_bytes())


@pytest.mark.long
def test_four_processes_give_the_tokens_of_one(tmp_path: Path) -> None:
    """With k = 3, options at random, cancelled and preempted requests; of one process without
    drafts, on one device."""
    requests = random_requests(np.random.default_rng(1), REQUESTS)
    run, stats = driven(tmp_path, REQUESTS)
    one = cache(lambda: Models(wide_target(), None))
    world = World("one device", one, one, CONFIG)
    ties = world.differences(requests, run, world.plain(requests))
    print(
        f"{REQUESTS} requests, {len(ties)} ties, {len(run.cancelled)} cancelled, "
        f"{stats.num_preemptions} preemptions, {stats.num_accepted_tokens} of "
        f"{stats.num_draft_tokens} drafts accepted"
    )
    assert len(ties) <= 1, ties
    assert stats.free_pages == stats.total_pages
    assert run.cancelled and stats.num_preemptions
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens


if __name__ == "__main__":
    coordinator, plan_port, processes, process, count = map(int, sys.argv[1:6])
    address = ("127.0.0.1", coordinator)
    options = HostOptions(address, plan_port, processes, process)
    sys.exit(main(options, count, Path(sys.argv[6])))
