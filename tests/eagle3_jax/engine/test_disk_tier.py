"""Pages that outlive the engine in a directory."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driving import drive, sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from simulated_device import SimulatedRunner, plain_answer, simulated_pair
from test_host_tier import DIVIDED, EXACT, media_of, on_two_devices, with_draft
from test_shared_prefixes import traffic
from tiny import VOCAB, tiny_draft

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.tiers.disk_tier import DiskTier
from eagle3_jax.engine.kv.tiers.page_files import (
    HEADER,
    DamagedPageError,
    read_page,
    write_page,
)
from eagle3_jax.engine.kv.tiers.page_index import LOCK
from eagle3_jax.engine.page_tiers import KeyedSlot
from eagle3_jax.sampling.params import SamplingParams

ROOM = 10_000_000
PAIR, OTHER = b"p" * 32, b"o" * 32
PAGE = np.arange(50, dtype=np.uint8)
KEYS = [bytes([i]) * 32 for i in range(1, 9)]


class Memory:
    """Slots of pages of 50 bytes."""

    page_bytes = PAGE.size

    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
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
        found |= dict(tier.done())
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


def test_another_server_finds_what_one_kept(tmp_path: Path) -> None:
    saved(tmp_path, KEYS[:3])
    tier, memory = opened(tmp_path)
    assert tier.match(KEYS) == 3
    tier.load([KeyedSlot(KEYS[2], 5)])
    assert ended(tier, 1) == {5: True}
    assert np.array_equal(memory.slots[5], PAGE + np.uint8(2))


def test_pages_of_another_pair_are_not_found(tmp_path: Path) -> None:
    saved(tmp_path, KEYS[:3])
    tier, _ = opened(tmp_path, OTHER)
    assert tier.match(KEYS) == 0


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


def test_other_pairs_pages_make_room(tmp_path: Path) -> None:
    saved(tmp_path, KEYS[:3])
    tier, _ = opened(tmp_path, OTHER, pages=3)
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


@pytest.mark.parametrize(
    ("make_pair", "fields"),
    [
        (lambda: with_draft(tiny_draft), {}),
        (on_two_devices, EXACT | DIVIDED),
    ],
    ids=["MHA", "exact, float8, context of two devices"],
)
def test_a_restarted_engine_goes_on_from_the_disk(
    tmp_path: Path, make_pair: Any, fields: dict[str, Any]
) -> None:
    """Tokens, accepted drafts and hits are those of an engine that was never ended."""
    target, draft = make_pair()
    kept: dict[str, Any] = {
        "num_pages": 60,
        **fields,
        "kv_offloading_bytes": ROOM,
        "kv_offloading_dir": str(tmp_path),
        "kv_offloading_dir_bytes": ROOM,
    }
    engine = Engine(target, draft, sizes(3, **kept))
    first, second = drive(engine, prompts(0)), drive(engine, prompts(1))
    hits = engine.stats().prefix_cache_hits
    engine.close()
    again = Engine(target, draft, sizes(3, **kept))
    third = drive(again, prompts(1))
    for one, other in zip(second.values(), third.values(), strict=True):
        assert (one.token_ids, one.accepted) == (other.token_ids, other.accepted)
    assert again.stats().prefix_cache_hits == hits > 0
    assert again.stats().cached.disk > hits / 2
    assert [a.token_ids for a in first.values()] == [a.token_ids for a in third.values()]
    again.close()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(traffic(), st.integers(1, 40), st.integers(0, 10))
def test_a_disk_changes_no_answer_and_every_fetch_ends(
    tmp_path_factory: pytest.TempPathFactory, case: dict[str, Any], slots: int, copy_steps: int
) -> None:
    """The same traffic twice, with a restart between; `drive` gives up on an engine that waits."""
    directory = tmp_path_factory.mktemp("pages")
    size = 4096
    config = replace(
        case["config"],
        enable_prefix_caching=True,
        kv_offloading_bytes=slots * size,
        kv_offloading_dir=str(directory),
        kv_offloading_dir_bytes=(slots + 20) * 2 * size,
    )
    for _ in range(2):
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(SimulatedRunner, "copy_steps", copy_steps)
            monkeypatch.setattr(SimulatedRunner, "page_bytes", size)
            monkeypatch.setattr("eagle3_jax.engine.engine.BETWEEN_LOOKS_S", 0.0001)
            target, draft = simulated_pair(monkeypatch)
            log = KVEventLog()
            engine = Engine(target, draft if case["with_draft"] else None, config, kv_events=log)
            answers = drive(
                engine,
                case["requests"],
                arrival_gap=case["arrival_gap"],
                cancel_at=case["cancel_at"],
            )
        stats = engine.stats()
        assert stats.free_pages == stats.total_pages
        assert not engine._replicas.first.is_copying
        tier = engine._replicas.first.tier
        assert tier is not None and not tier._holds.total()
        disk = engine._replicas.first.disk
        assert disk is not None
        assert media_of(log) == {
            "GPU": {*engine._replicas.first.pages._page_of},
            "CPU": {*tier._slot_of},
            "STORAGE": {bytes.fromhex(file.key) for file in disk._index._sizes},
        }
        engine.close()
        for request in case["requests"]:
            answer = answers[request.request_id]
            tokens, *_ = plain_answer(request, config)
            assert answer.token_ids == tokens[: len(answer.token_ids)]
            assert answer.finish[0] == "abort" or answer.token_ids == tokens
