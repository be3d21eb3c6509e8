"""Uses of a register before its load completes are found on every path."""

from typing import Any

import pytest

pytest.importorskip("tinygrad")
from tinygrad.renderer.amd.dsl import s, v  # pyright: ignore[reportMissingImports]
from tinygrad.runtime.autogen.amd.cdna import ins  # pyright: ignore[reportMissingImports]

from eagle3_tools.amdgpu.emulator.waits import MissingWait, missing_waits
from eagle3_tools.aot.amd.decode import decode

ALL = 15 | 7 << 4 | 15 << 8 | 3 << 14
"""An s_waitcnt that waits for nothing."""


def vm(count: int) -> Any:
    return ins.s_waitcnt(ALL & ~(15 | 3 << 14) | count & 15 | count >> 4 << 14)


def lgkm(count: int) -> Any:
    return ins.s_waitcnt(ALL & ~(15 << 8) | count << 8)


def found(*program: Any) -> list[MissingWait]:
    code = b"".join(i.to_bytes() for i in (*program, ins.s_endpgm()))
    return missing_waits(decode(code))


def load(register: int, size: int = 1) -> Any:
    name = "global_load_dword" + (f"x{size}" if size > 1 else "")
    data = v[register] if size == 1 else v[register : register + size - 1]
    return getattr(ins, name)(vdst=data, addr=v[60], saddr=s[4:5])


USE = ins.v_add_u32_e32(v[10], v[2], v[3])


def test_a_load_must_be_waited_for_before_its_register_is_used() -> None:
    assert found(load(2), vm(0), USE) == []
    (missing,) = found(load(2), USE)
    assert (missing.name, missing.register) == ("v_add_u32", ("v", 2))


def test_every_register_of_a_wide_load_is_pending() -> None:
    assert {m.register for m in found(load(2, 4), USE)} == {("v", 2), ("v", 3)}


def test_a_wait_for_all_but_so_many_covers_the_older_loads() -> None:
    assert found(load(2), load(3), vm(1), ins.v_mov_b32_e32(v[9], v[2])) == []
    assert found(load(2), load(3), vm(1), ins.v_mov_b32_e32(v[9], v[3])) != []
    assert found(load(2), load(3), lgkm(0), ins.v_mov_b32_e32(v[9], v[2])) != []


def test_a_result_may_not_be_overwritten_by_a_load_under_way() -> None:
    assert found(load(2), ins.v_mov_b32_e32(v[2], v[9])) != []
    assert found(load(2), load(2), vm(0), USE) == [], "loads of one kind return in order"


def test_scalar_loads_return_in_any_order() -> None:
    loads = (
        ins.s_load_dword(sdata=s[8], sbase=s[0:1], imm=1),
        ins.s_load_dword(sdata=s[9], sbase=s[0:1], imm=1),
    )
    use = ins.s_mov_b32(s[20], s[8])
    assert found(*loads, lgkm(0), use) == []
    assert found(*loads, lgkm(1), use) != []


def test_local_memory_must_be_settled_at_a_barrier() -> None:
    write = ins.ds_write_b32(addr=v[1], data0=v[2])
    assert found(write, lgkm(0), ins.s_barrier()) == []
    (missing,) = found(write, ins.s_barrier())
    assert missing.register == ("lds", 0)


def test_a_load_into_local_memory_must_be_waited_for() -> None:
    where = {"srsrc": s[8:11], "soffset": s[4], "vaddr": v[0], "offen": 1}
    direct = ins.buffer_load_dword(vdata=v[2], lds=1, **where)
    for use in (ins.s_barrier(), ins.ds_read_b32(vdst=v[5], addr=v[1])):
        assert found(direct, vm(0), use) == []
        (missing,) = found(direct, use)
        assert missing.register == ("lds", 0)
    assert found(direct, ins.v_mov_b32_e32(v[9], v[2])) == [], "no register is loaded"


def test_one_path_without_a_wait_is_enough() -> None:
    skip = ins.s_cbranch_scc0(1)
    assert found(load(2), vm(0), skip, ins.s_nop(0), USE) == []
    assert found(load(2), skip, vm(0), USE) != []


def test_a_loop_is_followed_until_nothing_new_is_pending() -> None:
    back = ins.s_cbranch_scc1(0x10000 - 5)  # To the use, where the loop's load is pending.
    assert found(USE, load(2), ins.s_nop(0), back) != []
    assert found(USE, load(2), vm(0), back) == []
