"""Four processes of two devices, whose neighbours divide contexts, under random traffic."""

import os
import pickle
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from several_processes import TESTS, free_ports
from traffic import Run, random_requests
from wide_engine import CONFIG
from wide_pair import wide_target
from world import Models, World

from eagle3_jax.engine import EngineStats

PROCESSES, DEVICES = 4, 2
REQUESTS = 200
LONGEST_S = 3600
"""Two cores take turns at eight devices, whose collectives wait for each other."""
SCRIPT = Path(__file__).with_name("wide_engine.py")
FOLDERS = ("", "eagle3_jax", "eagle3_jax/sharded", "proofs", "serve", "serve/hosts")


def driven(directory: Path, count: int) -> tuple[Run, EngineStats]:
    """By all processes; each must end with 0."""
    _, coordinator, calls = free_ports()
    paths = [str(TESTS.parent), *(str(TESTS / folder) for folder in FOLDERS)]
    environment = os.environ | {"PYTHONPATH": ":".join(paths)}
    environment |= {"JAX_NUM_CPU_DEVICES": f"{DEVICES}", "JAX_PLATFORMS": "cpu"}
    result = directory / "driven"
    shared = [sys.executable, str(SCRIPT), f"{coordinator}", f"{calls}", f"{PROCESSES}"]
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
