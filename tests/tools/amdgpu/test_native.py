"""The C form of an instruction and of a kernel does what the NumPy form does, bit for bit."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("tinygrad")

from amdgpu.instructions import encode, has_form, s, v
from amdgpu.single import fill, fill_descriptor, random_waves, run
from eagle3_tools.amdgpu.cases import emulated_cases
from eagle3_tools.amdgpu.check import POISON, source_of
from eagle3_tools.amdgpu.emulator.local_memory import LocalMemory
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault, GlobalMemory
from eagle3_tools.amdgpu.emulator.native.machine import NativeMachine, machine_of
from eagle3_tools.amdgpu.emulator.waves import LANES, Waves
from eagle3_tools.amdgpu.program.compiled import compile_source
from eagle3_tools.amdgpu.program.run import run_program
from eagle3_tools.amdgpu.program.runtime import EmulatedLauncher
from eagle3_tools.amdgpu.witness.table import (
    ACROSS_LANES,
    CALCULATOR,
    LOCAL_MEMORY,
    SCALAR,
    SCALAR_MEMORY,
    VECTOR,
    VECTOR_MEMORY,
)
from eagle3_tools.aot.amd.decode import Instruction, Kind, Operand
from eagle3_tools.aot.amd.machine_code import Kernel
from eagle3_tools.twin.shared_memory import SharedMemory

_BYTES, _SLOT = 1 << 13, 32
_END = Instruction("s_endpgm", "SOPP", 0, 4, {}, {"simm16": 0})
_ALL_ROWS: dict[str, Any] = {"row_mask": 15, "bank_mask": 15}


def _instructions() -> Iterator[Instruction]:
    for mnemonic in (*SCALAR, *VECTOR, *ACROSS_LANES, *CALCULATOR):
        if not mnemonic.startswith(("v_mfma_scale", "s_bfe")):
            for form in [f for f in ("e32", "e64") if has_form(mnemonic, f)] or [""]:
                yield encode(mnemonic, form)
    for control in (0x1B, 0x103, 0x118, 0x124, 0x140, 0x141, 0x142, 0x143, 0x152):
        for rest in ({"bc": 1}, {"bc": 0, "row_mask": 5, "bank_mask": 3}):
            for mnemonic in ("v_add_f32", "v_fmac_f32", "v_cndmask_b32"):
                yield encode(mnemonic, "DPP16", dpp=control, **_ALL_ROWS | rest)
    for selection in range(7):
        takes: dict[str, Any] = {
            "src0_sel": selection,
            "src1_sel": 6,
            "dst_sel": 6,
            "src0_sext": selection & 1,
        }
        yield encode("v_add_u32", "SDWA", **takes)
        yield encode("v_mul_lo_u16", "SDWA", **takes | {"dst_sel": selection, "dst_unused": 2})
    for mnemonic in LOCAL_MEMORY:
        yield encode(mnemonic, offset0=1, offset1=0 if "st64" in mnemonic else 2)
    for mnemonic in VECTOR_MEMORY:
        returns: dict[str, Any] = {"sc0": 1} if "atomic" in mnemonic else {}
        base: dict[str, Any] = {"saddr": s(127), "addr": v(40)}
        if mnemonic.startswith("buffer"):
            base = {"offen": 1, "vaddr": v(40), "srsrc": s(44, 4), "soffset": s(50)}
        yield encode(mnemonic, offset=16, **base, **returns)
    for mnemonic in ("buffer_load_dword", "buffer_load_dwordx4"):
        where = {"offen": 1, "vaddr": v(40), "srsrc": s(44, 4), "soffset": s(50)}
        yield encode(mnemonic, offset=16, lds=1, **where)
    for mnemonic in SCALAR_MEMORY:
        yield encode(mnemonic, offset=64, imm=1, sbase=s(40, 2))


def _of(code: dict[int, Instruction]) -> Kernel:
    numbers = "lds_bytes", "scratch_bytes", "user_registers", "arguments_at"
    none = dict.fromkeys(numbers, 0)
    return Kernel("", "gfx950", code, group_ids=(False, False, False), arguments=(), **none)


def _kernel(instructions: list[Instruction]) -> tuple[Kernel, list[int]]:
    """Put instructions, each with an end, after one another; return the addresses of each."""
    code, entries = dict[int, Instruction](), list[int]()
    for i in instructions:
        entries.append(8 * len(code))
        code[entries[-1]] = replace(i, pc=entries[-1], size=8)
        code[entries[-1] + 8] = replace(_END, pc=entries[-1] + 8)
    return _of(code), entries


@pytest.fixture(scope="module")
def all_instructions() -> tuple[NativeMachine, list[Instruction]]:
    """Every instruction in one library, because gcc takes a third of a second for each library."""
    instructions = list(_instructions())
    return NativeMachine(*_kernel(instructions)), instructions


def _ready(i: Instruction, seed: int) -> Waves:
    """Make waves with random registers and the addresses of an access."""
    w, rng = random_waves(i, 2, seed), np.random.default_rng(seed)
    order = rng.permutation(2 * LANES).reshape(2, LANES).astype(np.uint64) * np.uint64(_SLOT)
    w.memory = GlobalMemory(4 * _BYTES)
    base = w.memory.place(rng.integers(0, 256, _BYTES).astype(np.uint8), "bytes")
    w.memory.begin_launch(1)
    w.identity[:] = 0
    w.group[:], w.number[:] = 0, np.arange(2)
    w.lds = LocalMemory(1, 1 << 18, 1, 0)
    if i.name.startswith("ds_"):
        w.lds.bytes[:] = rng.integers(0, 256, w.lds.bytes.size)
        fill(w, Operand(Kind.VECTOR, 40), order * np.uint64(32) if "st64" in i.name else order)
    elif i.name.startswith(("global_", "s_load")):
        kind = Kind.SCALAR if i.name.startswith("s_") else Kind.VECTOR
        fill(w, Operand(kind, 40, 64), order + np.uint64(base))
    elif i.name.startswith("buffer_"):
        fill(w, Operand(Kind.VECTOR, 40), order)
        fill_descriptor(w, 44, base, _BYTES // 2)
        w.scalars[50] = 48
        w.scalars[124] = np.array([256, 2048])
    if not i.name.startswith(("v_permlane", "ds_read_b64_tr")) and seed:
        w.set_exec(rng.random((2, LANES)) < 0.7)
    return w


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_registers_and_memory_are_those_of_numpy(all_instructions: Any, seed: int) -> None:
    machine, instructions = all_instructions
    for number, i in enumerate(instructions):
        w, native = _ready(i, seed), _ready(i, seed)
        run(i, w)
        machine.run_once(native, number)
        for name in ("vectors", "scalars", "scc", "exec"):
            assert np.array_equal(getattr(w, name), getattr(native, name)), f"{name} after {i}"
        assert w.saturates == native.saturates and (w.lds.bytes == native.lds.bytes).all(), i
        assert (w.memory.bytes == native.memory.bytes).all(), f"memory after {i}"
        assert (w.memory.writers == native.memory.writers).all(), f"writers after {i}"


@pytest.mark.usefixtures("rocm_compiler")
@pytest.mark.parametrize(
    "name",
    [
        "route small kimi.experts@tp8 tokens4",
        "fp8_matmul small kimi.q_b_proj@tp8 ptpc rows16",
        "mla_decode small kimi.attention@tp4 q4_8k_page64_values",
    ],
)
def test_a_kernel_computes_what_numpy_does(name: str) -> None:
    (case,) = (case for case in emulated_cases() if case.name == name)
    arguments = case.arguments("gfx950")
    program = compile_source(source_of(case, "gfx950", arguments))
    given = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    ours, numpys = (
        run_program(program, given, poison=POISON[0], launcher=EmulatedLauncher(POISON[0], made))
        for made in (NativeMachine, Machine)
    )
    assert ours.launches == numpys.launches
    assert [r.tobytes() for r in ours.results] == [r.tobytes() for r in numpys.results]


def test_a_kernel_without_a_c_form_runs_in_numpy(capsys: pytest.CaptureFixture[str]) -> None:
    kernel, _ = _kernel([encode("s_bfe_u32")])
    assert isinstance(machine_of(kernel), Machine)
    assert "emulated by NumPy: s_bfe_u32" in capsys.readouterr().out


def test_waves_meet_at_a_barrier_and_see_each_others_local_memory() -> None:
    """Wave 0 reads what wave 1 wrote before the barrier; without it that is a conflict."""
    write = replace(encode("ds_write_b32"), size=8)
    barrier = Instruction("s_barrier", "SOPP", 0, 8, {}, {"simm16": 0})
    read = replace(encode("ds_read_b32", vdst=v(9), addr=v(41)), size=8)
    for program in ([write, barrier, read], [write, read]):
        code = {8 * k: replace(i, pc=8 * k) for k, i in enumerate([*program, _END])}
        machine = NativeMachine(_of(code))
        w = _ready(write, 0)
        mine = np.arange(LANES) * 4 + np.array([[0], [256]])
        w.vectors[40], w.vectors[41] = mine, mine[::-1]
        if barrier in program:
            machine.run_once(w)
            assert (w.vectors[9] == w.vectors[16, ::-1]).all()
        else:
            with pytest.raises(Fault, match="since the last barrier"):
                machine.run_once(w)


def test_a_kernel_runs_on_memory_that_processes_share() -> None:
    i = encode("global_load_dword", saddr=s(127), addr=v(40))
    machine, base = NativeMachine(_kernel([i])[0]), 1 << 44
    file = os.memfd_create("shared")
    os.ftruncate(file, _BYTES)
    memory = SharedMemory(file, base, _BYTES, base)
    words = np.arange(_BYTES // 4, dtype=np.uint32)
    memory.write(base, words)
    w = _ready(i, 0)
    w.memory, places = memory, 4 * np.arange(2 * LANES, dtype=np.uint64).reshape(2, LANES)
    fill(w, i.operands["addr"], places + np.uint64(base))
    machine.run_once(w)
    assert (w.vectors[i.operands["vdst"].index].reshape(-1) == words[: 2 * LANES]).all()
    fill(w, i.operands["addr"], places + np.uint64(base + _BYTES - 8))
    with pytest.raises(Fault, match="load of 4 bytes outside every buffer"):
        machine.run_once(w)
