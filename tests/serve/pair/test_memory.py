"""Memory that a server takes: of a device for the KV cache, of the host below it, and one line at
the start where it isn't there."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import pytest
from tiny import TARGET

from convert.device_memory import device_bytes
from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.initial_state import StateLayout
from serve.options.memory import MemoryShare
from serve.pair import memory
from serve.pair.loading import LoadedPair, fit_length
from serve.pair.memory import GIB, PROGRAM_BYTES, check_host_memory, fitting_pages, share_bytes


@pytest.mark.parametrize(
    ("context", "asked", "chunk"), [(2248, 16384, 2304), (2248, 2048, 2048), (256, 8192, 256)]
)
def test_a_chunk_is_no_longer_than_a_context(context: int, asked: int, chunk: int) -> None:
    """A published command asks for 16,384 tokens a chunk and contexts of 2,248."""
    found = fit_length(EngineConfig(0, prefill_chunk=asked), context, TARGET)
    assert (found.max_model_len, found.prefill_chunk) == (context, chunk)


def test_pages_fill_the_memory_and_one_more_would_not_fit(pair: LoadedPair) -> None:
    assert pair.draft is not None
    num_aux, config = pair.draft.config.num_aux, EngineConfig(max_num_seqs=2, max_model_len=64)

    def shapes(config: EngineConfig) -> Any:
        return StateLayout(pair.target, pair.draft, config, num_aux).shapes()

    def nbytes(num_pages: int) -> int:
        return device_bytes(jax.tree.leaves(shapes(replace(config, num_pages=num_pages))))

    weights, usable = 1_000_000, 9_000_000
    pages = fitting_pages(config, shapes, weights, usable)
    assert pages > config.pool_pages
    assert weights + nbytes(pages) <= usable < weights + nbytes(pages + 1)
    assert fitting_pages(config, shapes, weights, 0) == config.pages_per_seq + 1


@dataclass(frozen=True)
class Device:
    limit: int | None

    def memory_stats(self) -> dict[str, int] | None:
        return None if self.limit is None else {"bytes_limit": self.limit}


@pytest.mark.parametrize(
    ("memory", "devices", "expected"),
    [
        (MemoryShare(0.9), (95 * GIB, 90 * GIB), 90 * GIB - PROGRAM_BYTES),
        (MemoryShare(0.8, programs_on_top=True), (95 * GIB, 90 * GIB), 80 * GIB),
        (MemoryShare(0.45), (95 * GIB, 90 * GIB), 45 * GIB - PROGRAM_BYTES),
        (MemoryShare(0.95), (95 * GIB, 90 * GIB), 90 * GIB - PROGRAM_BYTES),
        (MemoryShare(0.9), (GIB, None), None),
    ],
)
def test_a_share_is_of_the_whole_memory_of_devices_that_tell_it(
    memory: MemoryShare, devices: tuple[int | None, ...], expected: int | None
) -> None:
    """JAX's allocator has 90% of it."""
    found = share_bytes(memory, 0.9, list(map(Device, devices)))
    assert found == (None if expected is None else pytest.approx(expected, abs=8))


@pytest.mark.parametrize(
    ("memory", "given", "claimed"),
    [
        (MemoryShare(0.9), {}, 0.9),
        (MemoryShare(0.8, programs_on_top=True), {}, 0.9),
        (MemoryShare(1.0), {}, 0.98),
        (MemoryShare(0.9), {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}, 0.5),
    ],
)
def test_jax_is_told_the_share_unless_the_user_told_it(
    memory: MemoryShare, given: dict[str, str], claimed: float
) -> None:
    environment = dict(given)
    assert memory.claim(environment) == pytest.approx(claimed)
    assert environment == (given or {"XLA_CLIENT_MEM_FRACTION": f"{claimed:.4g}"})


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """10 GiB free, no limits, two of four GPUs; a container's group, whose parent is the root."""
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {10 * 2**20} kB\n")
    (tmp_path / "cgroup").write_text("0::/pods/one\n")
    group = tmp_path / "groups/pods/one"
    group.mkdir(parents=True)
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(jax, "local_devices", lambda: [0] * 2)
    monkeypatch.setattr(jax, "devices", lambda: [0] * 4)
    return group


def refused(wanted: int) -> str:
    with pytest.raises(ValueError) as error:
        check_host_memory(wanted)
    (line,) = str(error.value).splitlines()
    return line


def test_a_host_needs_its_devices_part_of_free_memory(host: Path) -> None:
    """Small sizes are said in MiB."""
    check_host_memory(20 * GIB)
    assert "wants 10.5 GiB of this host's memory, of which 10.0 GiB are free" in refused(21 * GIB)
    memory.MEMINFO.write_text("MemAvailable: 4096 kB\n")
    check_host_memory(8 << 20)
    assert "wants 5.0 MiB of this host's memory, of which 4.0 MiB are free" in refused(10 << 20)


@pytest.mark.parametrize("where", [".", ".."])
def test_a_containers_limit_counts_without_files_that_can_be_read_again(
    host: Path, where: str
) -> None:
    (host / "memory.max").write_text("max\n")
    group = host / where
    (group / "memory.max").write_text(f"{6 * GIB}\n")
    (group / "memory.current").write_text(f"{3 * GIB}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\nactive_file 7\n")
    check_host_memory(8 * GIB)
    assert "container or unit leaves 4.0 GiB: raise it (docker --memory" in refused(9 * GIB)
