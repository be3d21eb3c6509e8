"""A KV cache that fills a share of a device's memory."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import pytest

from convert.device_memory import device_bytes
from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.initial_state import state_shapes
from serve.options.memory import MemoryShare
from serve.pair.loading import LoadedPair
from serve.pair.pool_size import PROGRAM_BYTES, fitting_pages, share_bytes

GIB = 2**30


@dataclass(frozen=True)
class Device:
    limit: int | None

    def memory_stats(self) -> dict[str, int] | None:
        return None if self.limit is None else {"bytes_limit": self.limit}


def test_one_page_more_would_not_fit(pair: LoadedPair) -> None:
    assert pair.draft is not None
    num_aux, config = pair.draft.config.num_aux, EngineConfig(max_num_seqs=2, max_model_len=64)

    def shapes(config: EngineConfig) -> Any:
        return state_shapes(pair.target, pair.draft, config, num_aux)

    def nbytes(num_pages: int) -> int:
        return device_bytes(jax.tree.leaves(shapes(replace(config, num_pages=num_pages))))

    weights, usable = 1_000_000, 9_000_000
    pages = fitting_pages(config, shapes, weights, usable)
    assert pages > config.pool_pages
    assert weights + nbytes(pages) <= usable < weights + nbytes(pages + 1)
    assert fitting_pages(config, shapes, weights, 0) == config.pages_per_seq + 1


@pytest.mark.parametrize(
    "memory, allocator_share, expected",
    [
        (MemoryShare(0.9), 0.9, 90 * GIB - PROGRAM_BYTES),
        (MemoryShare(0.8, programs_on_top=True), 0.9, 80 * GIB),
        (MemoryShare(0.45), 0.9, 45 * GIB - PROGRAM_BYTES),
        (MemoryShare(0.95), 0.9, 90 * GIB - PROGRAM_BYTES),
    ],
)
def test_a_share_is_of_the_devices_whole_memory(
    memory: MemoryShare, allocator_share: float, expected: int
) -> None:
    devices = [Device(95 * GIB), Device(90 * GIB)]
    assert share_bytes(memory, allocator_share, devices) == pytest.approx(expected, abs=8)


def test_devices_that_do_not_tell_are_not_filled() -> None:
    assert share_bytes(MemoryShare(0.9), 0.9, [Device(None)]) is None
    assert share_bytes(MemoryShare(0.9), 0.9, [Device(GIB), Device(None)]) is None


@pytest.mark.parametrize(
    "memory, environment, claimed",
    [
        (MemoryShare(0.9), {}, 0.9),
        (MemoryShare(0.8, programs_on_top=True), {}, 0.9),
        (MemoryShare(1.0), {}, 0.98),
        (MemoryShare(0.9), {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, 0.5),
    ],
)
def test_jax_is_told_the_share_unless_the_user_told_it(
    memory: MemoryShare, environment: dict[str, str], claimed: float
) -> None:
    before = dict(environment)
    assert memory.claim(environment) == pytest.approx(claimed)
    expected = before or {"XLA_CLIENT_MEM_FRACTION": f"{claimed:.4g}"}
    assert environment == expected
