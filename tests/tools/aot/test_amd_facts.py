"""Facts read from machine code: loops, their lengths, the arrays they load, and their waits."""

from typing import Any

import pytest

pytest.importorskip("tinygrad")
from tinygrad.renderer.amd.dsl import s, v  # pyright: ignore[reportMissingImports]
from tinygrad.runtime.autogen.amd.cdna import ins  # pyright: ignore[reportMissingImports]

from eagle3_tools.aot.amd.decode import decode
from eagle3_tools.aot.amd.flow import Flow, Loop, read_flow
from eagle3_tools.aot.amd.operations import (
    is_load,
    lds_bytes,
    matrix_clocks,
    matrix_kind,
    memory_width,
)
from eagle3_tools.aot.amd.origins import origins
from eagle3_tools.aot.amd.timeline import of_loop
from eagle3_tools.aot.amd.trip_counts import Arguments, trip_count

ALL = 15 | 7 << 4 | 15 << 8 | 3 << 14
"""A wait for nothing."""
LOAD = ins.global_load_dwordx4(vdst=v[2:5], addr=v[60], saddr=s[4:5])


def vm(count: int) -> Any:
    return ins.s_waitcnt(ALL & ~(15 | 3 << 14) | count & 15 | count >> 4 << 14)


def flow(*program: Any) -> Flow:
    code = b"".join(i.to_bytes() for i in (*program, ins.s_endpgm()))
    return read_flow(decode(code))


def looped(body: list[Any]) -> Flow:
    """The body once and again; it begins where the program does."""
    size = sum(len(i.to_bytes()) for i in body) // 4
    return flow(*body, ins.s_cbranch_vccnz((-size - 1) & 0xFFFF))


def the_loop(found: Flow) -> Loop:
    (loop,) = found.loops
    return loop


def latencies(*body: Any, cached: bool = False) -> float:
    found = looped(list(body))
    code = found.instructions(the_loop(found).blocks)
    return of_loop(code, "gfx950", {i.pc: cached for i in code}).latencies


def test_a_load_that_is_waited_for_at_once_costs_a_latency_and_one_left_under_way_half() -> None:
    assert latencies(LOAD, vm(0)) == pytest.approx(1.0)
    assert latencies(LOAD, vm(1)) == pytest.approx(1 / 2)
    assert latencies(LOAD, vm(3)) == pytest.approx(1 / 4)
    assert latencies(LOAD, LOAD, vm(0)) == pytest.approx(1.0)
    assert latencies(LOAD, vm(0), LOAD, vm(0)) == pytest.approx(2.0)
    assert latencies(LOAD, vm(0), cached=True) == pytest.approx(1 / 3)


def test_a_loop_that_scalars_count_has_a_length_and_one_that_vectors_end_has_none() -> None:
    count = [ins.s_add_i32(s[9], s[9], 1), LOAD, ins.s_cmp_lg_u32(s[9], 7)]
    size = sum(len(i.to_bytes()) for i in count) // 4
    back = ins.s_cbranch_scc1((-size - 1) & 0xFFFF)
    found = flow(ins.s_mov_b32(s[9], 0), *count, back)
    assert trip_count(found, the_loop(found)) == 7
    unknown = flow(*count, back)
    assert trip_count(unknown, the_loop(unknown)) is None
    by_vectors = looped([LOAD])
    assert trip_count(by_vectors, the_loop(by_vectors)) is None


def test_an_address_is_that_of_the_argument_it_was_made_from() -> None:
    """Two arguments, the second one plus an offset that was loaded."""
    found = flow(
        ins.s_load_dwordx4(sdata=s[4:7], sbase=s[0:1], offset=8, imm=1),
        LOAD,
        ins.s_load_dword(sdata=s[9], sbase=s[4:5], offset=0, imm=1),
        ins.s_add_u32(s[6], s[6], s[9]),
        ins.global_load_dwordx4(vdst=v[2:5], addr=v[60], saddr=s[6:7]),
    )
    assert sorted(map(sorted, origins(found).values())) == [[1], [2]]


def test_the_array_of_a_buffer_is_its_descriptors_base_and_not_a_size_in_its_offsets() -> None:
    """Arguments whose address another register holds; the buffer's offset comes from the second."""
    found = flow(
        ins.s_load_dwordx2(sdata=s[8:9], sbase=s[4:5], offset=0, imm=1),
        ins.s_load_dword(sdata=s[12], sbase=s[4:5], offset=8, imm=1),
        ins.v_mov_b32_e32(vdst=v[60], src0=s[12]),
        ins.buffer_load_dwordx4(vdata=v[2:5], vaddr=v[60], srsrc=s[8:11], soffset=0, offen=1),
    )
    assert list(map(sorted, origins(found, 4).values())) == [[0]]


def test_a_loops_length_may_depend_on_sizes_among_the_arguments() -> None:
    """K of 96 in steps of 32, and no more than five of them."""
    count = [ins.s_add_i32(s[9], s[9], 1), LOAD, ins.s_cmp_lg_u32(s[9], s[8])]
    size = sum(len(i.to_bytes()) for i in count) // 4
    found = flow(
        ins.s_load_dword(sdata=s[8], sbase=s[6:7], offset=16, imm=1),
        ins.s_ashr_i32(s[8], s[8], 5),
        ins.s_min_i32(s[8], s[8], 5),
        ins.s_mov_b32(s[9], 0),
        *count,
        ins.s_cbranch_scc1((-size - 1) & 0xFFFF),
    )
    loop = the_loop(found)
    for nbytes, trips in ((96, 3), (320, 5)):
        assert trip_count(found, loop, Arguments(at=6, words={16: nbytes})) == trips
    assert trip_count(found, loop, Arguments(at=6)) is None
    assert trip_count(found, loop, Arguments(at=4, words={16: 96})) is None


def test_the_way_to_a_loop_is_not_around_what_all_lanes_do() -> None:
    skipped = [ins.s_cbranch_execz(2), LOAD]
    found = flow(*skipped, ins.s_nop(0), ins.s_cbranch_vccnz(0xFFFE))
    code = found.instructions(found.path_to(the_loop(found).header))
    assert sum(map(is_load, code)) == 1


def test_bytes_and_clocks_are_those_of_the_documents() -> None:
    """2,048 bfloat16 operations a clock and compute unit on CDNA3, twice as many on CDNA4."""
    (block,) = flow(
        LOAD,
        ins.global_load_short_d16_hi(vdst=v[2], addr=v[60], saddr=s[4:5]),
        ins.ds_read_b128(vdst=v[2:5], addr=v[0]),
        ins.ds_read2_b32(vdst=v[2:3], addr=v[0]),
        ins.v_mfma_f32_16x16x16_bf16(vdst=v[4:7], src0=v[0:1], src1=v[2:3], src2=v[4:7]),
    ).blocks.values()
    load, half, wide, two, product, _ = block
    assert memory_width(load) == 16 and memory_width(half) == 2 and not memory_width(wide)
    assert (lds_bytes(wide), lds_bytes(two)) == (64 * 16, 64 * 8)
    assert matrix_kind(product) == "bf16"
    assert (matrix_clocks(product, "gfx942"), matrix_clocks(product, "gfx950")) == (16, 8)
