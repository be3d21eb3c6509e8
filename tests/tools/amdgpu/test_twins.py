"""Every check of the emulator notices its fault: compiled code with one change fails."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("tinygrad")
from eagle3_tools.amdgpu.cases import EmulatedCase, emulated_cases
from eagle3_tools.amdgpu.check import POISON, kernels_of, source_of
from eagle3_tools.amdgpu.emulator.machine import Machine
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.native.machine import machine_of
from eagle3_tools.amdgpu.emulator.waits import missing_waits
from eagle3_tools.amdgpu.program.compiled import CompiledProgram, compile_source
from eagle3_tools.amdgpu.program.run import run_program
from eagle3_tools.amdgpu.program.runtime import EmulatedLauncher
from eagle3_tools.aot.amd.decode import Instruction, Kind
from eagle3_tools.aot.amd.machine_code import Kernel

pytestmark = pytest.mark.usefixtures("rocm_compiler")
Change = Callable[[Instruction], Instruction]


class Subject:
    """A compiled case with its arguments and expected results; `machine` runs its kernels."""

    machine: Any = Machine

    def __init__(self, name: str, arch: str = "gfx950"):
        self.case: EmulatedCase = next(c for c in emulated_cases() if c.name == name)
        arguments = self.case.arguments(arch)
        self.program: CompiledProgram = compile_source(source_of(self.case, arch, arguments))
        self.given = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
        self.expected = self.case.expected(arch, arguments)

    def error(self, change: Change = lambda i: i, **fields: Any) -> float:
        """Run with changed instructions, or with a kernel's fields replaced; return the error."""
        launcher = SpoiledLauncher(change, fields, Subject.machine)
        run = run_program(self.program, self.given, poison=POISON[0], launcher=launcher)
        return self.case.compare(run.results, self.expected)

    def finds(self, change: Change = lambda i: i) -> bool:
        """Return whether the change causes a Fault or an error beyond the tolerance."""
        try:
            return not self.error(change) <= self.case.tolerance.reference
        except Fault:
            return True


class SpoiledLauncher(EmulatedLauncher):
    """Runs kernels whose instructions are changed."""

    def __init__(self, change: Change, fields: dict[str, Any], machine: Any) -> None:
        super().__init__(POISON[0], machine)
        self._change, self._fields = change, fields

    def read(self, name: str, code: bytes) -> Kernel:
        """Read the changed kernel."""
        kernel = super().read(name, code)
        spoiled = {pc: self._change(i) for pc, i in kernel.code.items()}
        return replace(kernel, code=spoiled, **self._fields)


@pytest.fixture(autouse=True, params=[Machine, machine_of], ids=["NumPy", "C"])
def both_machines(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subject, "machine", request.param)


@pytest.fixture(scope="module")
def product() -> Subject:
    return Subject("fp8_matmul small kimi.q_b_proj@tp8 ptpc rows16")


@pytest.fixture(scope="module")
def scaled() -> Subject:
    return Subject("gated_matmul small kimi.dense_gate_up@tp8 mxfp4_mxfp4 rows4")


@pytest.fixture(scope="module")
def attention() -> Subject:
    return Subject("mla_decode small kimi.attention@tp4 q4_8k_page64_values")


def without(name: str) -> Change:
    return lambda i: replace(i, name="s_nop") if i.name == name else i


def test_code_as_it_was_compiled_has_no_fault(product: Subject, scaled: Subject) -> None:
    for subject in (product, scaled):
        assert not subject.finds()


def test_exchanged_matrices_are_seen(product: Subject) -> None:
    def exchange(i: Instruction) -> Instruction:
        if not i.name.startswith("v_mfma"):
            return i
        swapped = {"src0": i.operands["src1"], "src1": i.operands["src0"]}
        return replace(i, operands={**i.operands, **swapped})

    assert product.finds(exchange)


def test_another_layout_of_results_is_seen(
    product: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eagle3_tools.amdgpu.emulator.operations import matrix

    monkeypatch.setattr(Subject, "machine", Machine)  # The C form may be kept from before.
    places = matrix.result_places
    monkeypatch.setattr(matrix, "result_places", lambda rows: places(rows)[::-1])
    assert product.finds()


def test_the_scale_of_another_block_is_seen(scaled: Subject) -> None:
    def next_byte(i: Instruction) -> Instruction:
        if not i.name.startswith("v_mfma_scale"):
            return i
        return replace(i, fields={**i.fields, "opsel": i.fields["opsel"] ^ 1})

    assert scaled.finds(next_byte)


def test_a_mask_that_is_off_by_one_is_seen(attention: Subject) -> None:
    def one_more(i: Instruction) -> Instruction:
        for strict, loose in (("_lt_", "_le_"), ("_gt_", "_ge_")):
            if i.name.startswith("v_cmp") and strict in i.name and i.name.endswith("32"):
                return replace(i, name=i.name.replace(strict, loose))
        return i

    assert attention.finds(one_more)


def test_a_store_beyond_its_buffer_is_a_fault(product: Subject) -> None:
    def further(i: Instruction) -> Instruction:
        if "store" not in i.name or not i.name.startswith("global"):
            return i
        return replace(i, fields={**i.fields, "offset": 4088})

    with pytest.raises(Fault, match="outside every buffer"):
        product.error(further)


def test_a_result_that_is_not_stored_is_a_fault(product: Subject) -> None:
    def skip(i: Instruction) -> Instruction:
        return replace(i, name="s_nop") if "store" in i.name and "ds_" not in i.name else i

    with pytest.raises(Fault, match=r"never written|nobody wrote"):
        product.error(skip)


def test_waves_that_do_not_meet_conflict_in_local_memory(attention: Subject) -> None:
    with pytest.raises(Fault, match="since the last barrier"):
        attention.error(without("s_barrier"))


def test_workgroups_that_do_the_same_work_conflict(product: Subject) -> None:
    with pytest.raises(Fault):
        product.error(group_ids=(False, False, False))


def test_a_register_that_is_not_set_is_seen(product: Subject) -> None:
    def unset(i: Instruction) -> Instruction:
        constant = [o for o in i.sources if o.kind is Kind.CONSTANT]
        return replace(i, name="s_nop") if i.name == "v_mov_b32" and constant else i

    assert product.finds(unset)


@pytest.mark.parametrize("name", ["product", "scaled"])
def test_almost_every_wait_that_is_dropped_is_missed(
    name: str, request: pytest.FixtureRequest
) -> None:
    """LLVM waits twice in some places, so not every dropped wait is missed."""
    found = []
    for kernel in kernels_of(request.getfixturevalue(name).program):
        assert not missing_waits(kernel.code)
        for i in [i for i in kernel.code.values() if i.name == "s_waitcnt"]:
            dropped = {**kernel.code, i.pc: replace(i, name="s_nop")}
            found.append(bool(missing_waits(dropped)))
    assert np.mean(found) > 0.8, f"{sum(found)} of {len(found)}"
