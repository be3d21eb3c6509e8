"""Pages that outlive the engine in a directory, also one that others have spoiled."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import Answer, drive
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_device import SimulatedRunner, plain_answer, simulated_pair
from tiny import VOCAB

from eagle3_jax.engine import Engine, EngineConfig, EngineStats, Request
from eagle3_jax.engine.kv.disk_tier import DiskTier, make_lower_tiers
from eagle3_jax.engine.kv.page_files import (
    HEADER,
    LOCK,
    DamagedPageError,
    read_page,
    write_page,
)
from eagle3_jax.engine.page_tiers import KeyedSlot
from eagle3_jax.sampling.params import SamplingParams

ROOM = 10_000_000
PAIR, OTHER = b"p" * 32, b"o" * 32
PAGE = np.arange(50, dtype=np.uint8)
KEYS = [bytes([i]) * 32 for i in range(1, 9)]


class Memory:
    """Slots of pages of so many bytes."""

    def __init__(self, fingerprint: bytes, page_bytes: int = PAGE.size) -> None:
        self.fingerprint, self.page_bytes = fingerprint, page_bytes
        self.slots = {slot: PAGE + np.uint8(slot) for slot in range(8)}

    def bytes_of(self, slot: int) -> np.ndarray:
        return self.slots[slot]

    def fill(self, slot: int, data: np.ndarray) -> None:
        self.slots[slot] = data


def opened(directory: Path, fingerprint: bytes = PAIR, pages: int = 100) -> tuple[DiskTier, Memory]:
    memory = Memory(fingerprint)
    limit = pages * (HEADER.size + PAGE.size)
    return DiskTier(directory, limit, memory), memory


def ended(tier: DiskTier, count: int) -> dict[int, bool]:
    """So many copies, awaited."""
    found: dict[int, bool] = {}
    until = time.monotonic() + 30
    while len(found) < count:
        found |= dict(tier.poll())
        assert time.monotonic() < until
    return found


def saved(directory: Path, keys: list[bytes], pages: int = 100) -> list[Path]:
    """A directory with the pages of these keys, each that of its number; the files in it."""
    tier, _ = opened(directory, pages=pages)
    for slot, key in enumerate(keys):
        tier.save([KeyedSlot(key, slot)])
        assert ended(tier, 1) == {slot: True}
    tier.close()
    return sorted(directory.rglob("*.page"))


def test_the_longest_unused_go_first_after_a_restart_too(tmp_path: Path) -> None:
    saved(tmp_path, KEYS[:3])
    tier, _ = opened(tmp_path)
    tier.load([KeyedSlot(KEYS[0], 0)])
    ended(tier, 1)
    tier.close()
    tier, _ = opened(tmp_path, pages=3)
    tier.save([KeyedSlot(KEYS[3], 3)])
    ended(tier, 1)
    assert [tier.match([key]) for key in KEYS[:4]] == [1, 0, 1, 1]
    assert len([*tmp_path.rglob("*.page")]) == 3
    assert tier.total_bytes == 3 * (HEADER.size + PAGE.size)


def test_other_pairs_pages_are_not_found_and_make_room(tmp_path: Path) -> None:
    saved(tmp_path, KEYS[:3])
    tier, _ = opened(tmp_path, OTHER, pages=3)
    assert tier.match(KEYS) == 0
    tier.save([KeyedSlot(KEYS[0], 0)])
    ended(tier, 1)
    assert tier.match(KEYS) == 1
    assert len([*tmp_path.rglob("*.page")]) == 3


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, HEADER.size + PAGE.size - 1), st.integers(1, 255))
def test_no_changed_byte_is_served(tmp_path: Path, place: int, change: int) -> None:
    path = tmp_path / "one.page"
    write_page(path, PAIR, KEYS[0], PAGE)
    data = bytearray(path.read_bytes())
    data[place] ^= change
    path.write_bytes(data)
    with pytest.raises(DamagedPageError):
        read_page(path, PAIR, KEYS[0], PAGE.size)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"", lambda data: data[:20]],
)
def test_a_damaged_file_is_counted_and_deleted(tmp_path: Path, damage: Any) -> None:
    (path,) = saved(tmp_path, KEYS[:1])
    path.write_bytes(damage(path.read_bytes()))
    tier, memory = opened(tmp_path)
    tier.load([KeyedSlot(KEYS[0], 7)])
    assert ended(tier, 1) == {7: False}
    assert tier.num_damaged == 1
    assert np.array_equal(memory.slots[7], PAGE + np.uint8(7))
    assert tier.match(KEYS) == 0
    assert not path.exists()


def test_a_page_under_another_name_is_not_served(tmp_path: Path) -> None:
    first, second = saved(tmp_path, KEYS[:2])
    first.write_bytes(second.read_bytes())
    tier, _ = opened(tmp_path)
    tier.load([KeyedSlot(KEYS[0], 0), KeyedSlot(KEYS[1], 1)])
    assert ended(tier, 2) == {0: False, 1: True}


def test_foreign_files_are_counted_and_left_and_unfinished_ones_go(tmp_path: Path) -> None:
    (path,) = saved(tmp_path, KEYS[:1])
    foreign = [tmp_path / "notes.txt", path.parent / "notes.txt", tmp_path / "x" / "1.page"]
    (tmp_path / "x").mkdir()
    for other in foreign:
        other.write_text("mine")
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(path.read_bytes()[:30])
    tier, _ = opened(tmp_path)
    assert tier.num_ignored == len(foreign)
    assert all(other.read_text() == "mine" for other in foreign)
    assert not unfinished.exists()
    assert tier.match(KEYS) == 1


def test_a_directory_has_one_server_at_a_time(tmp_path: Path) -> None:
    tier, _ = opened(tmp_path)
    with pytest.raises(ValueError, match="in use by another server"):
        opened(tmp_path)
    tier.close()
    opened(tmp_path)


def test_a_disk_that_fails_costs_only_what_it_would_have_kept(tmp_path: Path) -> None:
    tier, _ = opened(tmp_path)
    (tmp_path / PAIR.hex()).write_text("where the folder should be")
    tier.save([KeyedSlot(KEYS[0], 0)])
    assert ended(tier, 1) == {0: False}
    assert (tier.num_failed, tier.match(KEYS), tier.total_bytes) == (1, 0, 0)


def test_pages_given_up_while_they_are_written_leave_no_file(tmp_path: Path) -> None:
    tier, _ = opened(tmp_path)
    for slot, key in enumerate(KEYS):
        tier.save([KeyedSlot(key, slot)])
    tier.forget(None)
    ended(tier, len(KEYS))
    tier.close()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [LOCK]


def prompts(seed: int) -> list[Request]:
    return [
        Request(
            f"{user}-{seed}",
            [(7 * user + 3 * j * j) % VOCAB for j in range(40)] + [user],
            SamplingParams(temperature=0.7 * (user % 2), seed=user, max_tokens=12),
        )
        for user in range(4)
    ]


SIZE = 4096
CONFIG = EngineConfig(3, 64, 2, 4, num_pages=33, prefill_chunk=8, kv_offloading_bytes=100 * SIZE)
PROMPT = Request("a", [*range(16), 3], SamplingParams(max_tokens=1, seed=1))


def served(
    directory: Path, monkeypatch: pytest.MonkeyPatch, requests: list[Request]
) -> tuple[dict[str, Answer], EngineStats]:
    """By an engine of its own, whose pages are in the directory once it has ended."""
    monkeypatch.setattr(SimulatedRunner, "page_bytes", SIZE)
    kept = {"kv_offloading_dir": str(directory), "kv_offloading_dir_bytes": 400 * SIZE}
    engine = Engine(*simulated_pair(monkeypatch), replace(CONFIG, **kept))
    answers, stats = drive(engine, requests), engine.stats()
    engine.close()
    return answers, stats


def test_damaged_and_foreign_files_are_counted_and_cost_a_prefill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served(tmp_path, monkeypatch, [PROMPT])
    first, *others = sorted(tmp_path.rglob("*.page"))
    assert len(others) == 3
    data = bytearray(first.read_bytes())
    data[-1] ^= 1
    first.write_bytes(data)
    (tmp_path / "notes.txt").write_text("mine")
    answers, stats = served(tmp_path, monkeypatch, [PROMPT])
    assert (stats.damaged_pages, stats.failed_fetches, stats.foreign_files) == (1, 1, 1)
    assert answers["a"].token_ids == plain_answer(PROMPT, CONFIG)[0]
    assert stats.cached.disk < 16
    _, stats = served(tmp_path, monkeypatch, [PROMPT])
    assert (stats.damaged_pages, stats.failed_fetches, stats.cached.disk) == (0, 0, 16)


def test_several_processes_keep_no_directory(tmp_path: Path) -> None:
    """Each has its own devices' part of a page only."""
    kept = {"kv_offloading_dir": str(tmp_path), "kv_offloading_dir_bytes": 400 * SIZE}
    pages: Any = Memory(PAIR, SIZE)
    with pytest.raises(ValueError, match="kv_offloading_dir needs an engine of one process"):
        make_lower_tiers(pages, replace(CONFIG, **kept), None, alone=False)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from eagle3_jax.engine.kv.page_files import write_page
number = 0
while True:
    key = number.to_bytes(32, "big")
    page = np.full(1 << 20, number % 251, np.uint8)
    write_page(Path(sys.argv[1]) / ("ab" * 32) / f"{key.hex()}.page", b"\\xab" * 32, key, page)
    number += 1
    print(number, flush=True)
"""


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
        memory = Memory(b"\xab" * 32, 1 << 20)
        tier = DiskTier(tmp_path, 1 << 30, memory)
        count = len(list(tmp_path.rglob("*.page")))
        keys = [number.to_bytes(32, "big") for number in range(count)]
        assert tier.match(keys) == count > 0
        for number, key in enumerate(keys):
            tier.load([KeyedSlot(key, 0)])
            assert ended(tier, 1) == {0: True}
            assert (memory.slots[0] == number % 251).all()
        assert not list(tmp_path.rglob("*.unfinished"))
        tier.close()
