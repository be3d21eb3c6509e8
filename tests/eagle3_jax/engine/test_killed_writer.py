"""A process that is killed while it writes pages leaves whole ones, and no other file."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eagle3_jax.engine.kv.tiers.disk_tier import DiskTier
from eagle3_jax.engine.page_tiers import KeyedSlot

WRITER = """
import sys
from pathlib import Path
import numpy as np
from eagle3_jax.engine.kv.tiers.page_files import write_page
number = 0
while True:
    key = number.to_bytes(32, "big")
    page = np.full(1 << 20, number % 251, np.uint8)
    write_page(Path(sys.argv[1]) / ("ab" * 32) / f"{key.hex()}.page", b"\\xab" * 32, key, page)
    number += 1
    print(number, flush=True)
"""


class Memory:
    """A slot of pages of 1 MiB."""

    page_bytes, fingerprint = 1 << 20, b"\xab" * 32

    def __init__(self) -> None:
        self.page = np.zeros(0, np.uint8)

    def bytes_of(self, slot: int) -> np.ndarray:
        return self.page

    def fill(self, slot: int, data: np.ndarray) -> None:
        self.page = data


def test_a_killed_writer_leaves_only_whole_pages(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    rng = random.Random(1)
    for _ in range(40 if request.config.getoption("long") else 3):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            os.kill(writer.pid, signal.SIGKILL)
        memory = Memory()
        tier = DiskTier(tmp_path, 1 << 30, memory)
        count = len(list(tmp_path.rglob("*.page")))
        keys = [number.to_bytes(32, "big") for number in range(count)]
        assert tier.match(keys) == count > 0
        for number, key in enumerate(keys):
            tier.load([KeyedSlot(key, 0)])
            while not (ended := tier.done()):
                time.sleep(0.001)
            assert ended == [(0, True)]
            assert (memory.page == number % 251).all()
        assert not list(tmp_path.rglob("*.unfinished"))
        tier.close()
