"""Accesses that a GPU would tolerate are errors in the emulated memory."""

import numpy as np
import pytest

from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory

ONE = np.array([7], np.uint32)


def groups(*numbers: int) -> np.ndarray:
    return np.array(numbers)


def addresses(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


@pytest.fixture
def memory() -> GlobalMemory:
    return GlobalMemory(1 << 16)


def test_a_buffer_holds_what_was_placed(memory: GlobalMemory) -> None:
    rows = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.array_equal(memory.read(memory.place(rows, "rows"), (2, 3), np.int16), rows)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_elements_of_every_size_are_read_and_written_where_they_lie(
    memory: GlobalMemory, size: int
) -> None:
    start = memory.place(np.arange(64, dtype=np.uint8), "bytes")
    memory.begin_launch(1)
    where = addresses(start + 5 * size, start + 3 * size)
    expected = np.arange(64, dtype=np.uint8).view(f"<u{size}")
    assert memory.load(where, size, 2, groups(0, 0)).tolist() == [
        [expected[5], expected[3]],
        [expected[6], expected[4]],
    ]
    memory.store(where, np.array([[1, 2]], np.uint32), size, groups(0, 0))
    after = memory.read(start, (64 // size,), f"<u{size}")
    assert after[5] == 1 and after[3] == 2 and (np.delete(after, [3, 5]) < 2**31).all()
    assert np.array_equal(np.delete(after, [3, 5]), np.delete(expected, [3, 5]))


def test_an_access_that_begins_or_ends_outside_a_buffer_is_a_fault(memory: GlobalMemory) -> None:
    start = memory.place(np.zeros(6, np.uint8), "six bytes")
    for address in (start - 1, start + 253, 0, 2**63):
        with pytest.raises(Fault, match="outside every buffer"):
            memory.load(addresses(address), 4, 1, groups(0))
    for address in (start - 1, start + 3, start + 6, 0, 2**63):
        with pytest.raises(Fault, match="outside every buffer"):
            memory.store(addresses(address), ONE[None], 4, groups(0))


def test_loads_behind_a_buffer_in_its_block_are_counted(memory: GlobalMemory) -> None:
    start = memory.place(np.zeros(6, np.uint8), "six bytes")
    memory.load(addresses(start, start + 3, start + 252), 4, 1, groups(0, 0, 0))
    assert memory.loads_beyond == 2


def test_bytes_that_nobody_wrote_cannot_be_loaded(memory: GlobalMemory) -> None:
    start = memory.allocate(8, "result")
    memory.begin_launch(1)
    memory.store(addresses(start), ONE[None], 4, groups(0))
    assert memory.load(addresses(start), 4, 1, groups(0)) == 7
    for first in (start + 4, start + 2):
        with pytest.raises(Fault, match="nobody wrote"):
            memory.load(addresses(first), 4, 1, groups(0))
    with pytest.raises(Fault, match="4 of 8 bytes"):
        memory.read(start, (2,), np.uint32)


def test_two_workgroups_of_a_launch_may_not_store_to_one_place(memory: GlobalMemory) -> None:
    start = memory.allocate(8, "result")
    memory.begin_launch(2)
    memory.store(addresses(start), ONE[None], 2, groups(0))
    memory.store(addresses(start + 2), ONE[None], 2, groups(1))
    with pytest.raises(Fault, match="another workgroup stored"):
        memory.store(addresses(start), ONE[None], 2, groups(1))
    with pytest.raises(Fault, match="another workgroup writes"):
        memory.load(addresses(start), 2, 1, groups(1))
    memory.begin_launch(2)
    memory.store(addresses(start), ONE[None], 2, groups(1))


@pytest.fixture
def local() -> LocalMemory:
    return LocalMemory(groups=2, size=64, granule=4, poison=0x7FC12345)


def test_local_memory_of_a_workgroup_is_its_own_and_begins_poisoned(local: LocalMemory) -> None:
    local.store(groups(8), ONE[None], 4, groups(1), groups(0))
    both = local.load(groups(8, 8), 4, 1, groups(0, 1), groups(0, 0))
    assert both.tolist() == [[0x7FC12345, 7]]


def test_local_memory_ends_where_the_kernel_says(local: LocalMemory) -> None:
    local.load(groups(60), 4, 1, groups(0), groups(0))
    with pytest.raises(Fault, match="byte 61 of 64"):
        local.load(groups(61), 4, 1, groups(0), groups(0))


@pytest.mark.parametrize("first", ["load", "store"])
@pytest.mark.parametrize("second", ["load", "store"])
def test_waves_conflict_between_barriers_where_one_of_them_writes(
    local: LocalMemory, first: str, second: str
) -> None:
    def access(kind: str, wave: int) -> None:
        where = groups(12), *((ONE[None], 4) if kind == "store" else (4, 1))
        getattr(local, kind)(*where, groups(0), groups(wave))

    access(first, 0)
    access(second, 0)  # Accesses of one wave are in order.
    local.barrier(0)
    access(first, 0)
    if first == second == "load":
        access(second, 1)
    else:
        with pytest.raises(Fault, match=r"wave 1 .* since the last barrier"):
            access(second, 1)
    local.barrier(0)
    access(second, 2)


def test_a_store_conflicts_with_any_of_several_readers(local: LocalMemory) -> None:
    for wave in (0, 1):
        local.load(groups(0), 4, 1, groups(0), groups(wave))
    with pytest.raises(Fault, match="several"):
        local.store(groups(0), ONE[None], 4, groups(0), groups(1))
