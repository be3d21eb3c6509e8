"""Steps and faults of handwritten programs; test_compiled runs compiled ones."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("tinygrad")

from eagle3_tools.amdgpu.emulator.launch import LaunchCounts
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.compiled import CompiledProgram
from eagle3_tools.amdgpu.program.executable import (
    Array,
    Conditional,
    Copy,
    Executable,
    Fill,
    KernelLaunch,
    LibraryProduct,
    Matrix,
    Slice,
    Thunk,
    Unknown,
    While,
)
from eagle3_tools.amdgpu.program.program_memory import ProgramMemory
from eagle3_tools.amdgpu.program.run import ProgramRun, run_program
from eagle3_tools.amdgpu.program.runtime import Launcher

F32 = np.dtype(np.float32)
ONES = np.ones(4, np.float32)
MFMA = "v_mfma_f32_16x16x32_bf16"


def four(buffer: int, offset: int = 0) -> Slice:
    return Slice(buffer, offset, 16)


def one(buffer: int, size: int = 4) -> Slice:
    return Slice(buffer, 0, size)


def kernel(name: str, reads: list[Slice], writes: list[Slice], **changed: Any) -> KernelLaunch:
    fields: dict[str, Any] = {
        "kernel": name.partition(" ")[0],
        "code": b"",
        "arguments": (*reads, *writes),
        "written": (False,) * len(reads) + (True,) * len(writes),
        "zeroed": (),
        **dict.fromkeys(("grid", "threads"), (1, 1, 1)),
        "dynamic_lds": 0,
    }
    return KernelLaunch(name, **fields | changed)


def array(buffer: int, *shape: int) -> Array:
    return Array(buffer, shape or (4,), F32)


def program(
    thunks: list[Thunk],
    results: list[Array],
    parameters: tuple[Array, ...] = (),
    **changed: Any,
) -> CompiledProgram:
    buffers = dict.fromkeys(range(8), 64)
    code = Executable(buffers, {}, parameters, tuple(results), tuple(thunks))
    count = len(parameters)
    fields: dict[str, Any] = {"arguments": count, "kept": tuple(range(count))} | changed
    return CompiledProgram("gfx950", "", executable=code, **fields)


def acting(act: Callable[[ProgramMemory, list[int]], None]) -> Launcher:
    """Run `act` for every kernel, ignoring its declared arguments."""

    def run(thunk: KernelLaunch, memory: ProgramMemory, addresses: list[int]) -> LaunchCounts:
        memory.begin_launch(1)
        act(memory, addresses)
        return LaunchCounts(1, 1, Counter({MFMA: 1}))

    return run


def store(memory: ProgramMemory, address: int, value: np.ndarray) -> None:
    places = address + 4 * np.arange(value.size, dtype=np.uint64)
    memory.store(places, value.view(np.uint32)[None], 4, np.zeros(value.size, np.int64))


def run(
    given: CompiledProgram, *arguments: np.ndarray, launcher: Launcher | None = None
) -> ProgramRun:
    return run_program(given, arguments, poison=0, launcher=launcher)


def test_a_loop_whose_length_is_known_needs_no_condition():
    body = kernel("next", [one(0)], [one(0)])
    given = program([While("while", one(2, 1), (), (body,), 7)], [array(0, 1)], (array(0, 1),))

    def add(memory: ProgramMemory, addresses: list[int]) -> None:
        store(memory, addresses[1], 1 + memory.read(addresses[0], (1,), F32))

    assert run(given, np.zeros(1, F32), launcher=acting(add)).results[0] == 7


@pytest.mark.parametrize(("index", "chosen"), [(0, 1), (1, 2), (2, 3), (3, 3), (-1, 3)])
def test_a_branch_is_chosen_by_number_and_the_last_where_there_is_none(index: int, chosen: int):
    branches = tuple((Fill("fill", four(1), n),) for n in (1, 2, 3))
    given = program(
        [Conditional("cond", one(0), branches)],
        [Array(1, (4,), np.dtype(np.int32))],
        (Array(0, (), np.dtype(np.int32)),),
    )
    assert run(given, np.array(index, np.int32)).results[0].tolist() == [chosen] * 4


@pytest.mark.parametrize(("index", "chosen"), [(True, 1), (False, 2)])
def test_the_first_branch_is_for_true(index: bool, chosen: int):
    branches = tuple((Fill("fill", one(1), n),) for n in (1, 2))
    given = program(
        [Conditional("cond", one(0, 1), branches)],
        [Array(1, (), np.dtype(np.int32))],
        (Array(0, (), np.dtype(np.bool_)),),
    )
    assert run(given, np.array(index)).results[0] == chosen


def test_pruned_arguments_are_given_but_not_used_and_others_must_fit():
    given = program([], [array(0)], (array(0),), arguments=2, kept=(1,))
    assert run(given, np.zeros(9, np.int8), ONES).results[0].tolist() == [1] * 4
    with pytest.raises(ValueError, match="expected 2 arguments, got 1"):
        run(given, ONES)
    with pytest.raises(ValueError, match=r"argument 1: expected float32\(4,\), got float64\(4,\)"):
        run(given, ONES, ONES.astype(np.float64))


def product(**changed: Any) -> LibraryProduct:
    """Make a product of [2, 4] in column-major order and [4, 3], with 48 FLOPs."""
    fields: dict[str, Any] = {
        "left": Matrix(one(0, 32), F32, (1, 2, 4), (0, 1, 2)),
        "right": Matrix(one(1, 48), F32, (1, 4, 3), (0, 3, 1)),
        "added": Matrix(one(2, 24), F32, (1, 2, 3), (0, 3, 1)),
        "result": Matrix(one(3, 24), F32, (1, 2, 3), (0, 3, 1)),
        **{"alpha": 0.5, "beta": 0.0, "unknown": ""},
    }
    return LibraryProduct("dot.1", **fields | changed)


def bias_of(columns: int) -> Matrix:
    return Matrix(one(5, 4 * columns), F32, (1, 1, columns), (0, 0, 1))


@pytest.mark.parametrize("beta", [0.0, 2.0])
@pytest.mark.parametrize(("bias", "gelu"), [(None, False), (bias_of(3), False), (bias_of(3), True)])
def test_a_product_of_the_library_is_computed_and_listed_with_its_share(
    beta: float, bias: Matrix | None, gelu: bool
):
    step = product(beta=beta, bias=bias, gelu=gelu)
    steps = [step, kernel("ones", [four(0)], [four(4)])]
    arrays = array(0, 4, 2), array(1, 4, 3), array(2, 2, 3), array(5, 3)
    rng = np.random.default_rng(0)
    left, right, added, last = given = [rng.normal(size=a.shape).astype(F32) for a in arrays]
    launcher = acting(lambda memory, addresses: store(memory, addresses[1], ONES))
    done = run(program(steps, [array(3, 2, 3)], arrays), *given, launcher=launcher)
    total = 0.5 * (left.T @ right) + beta * added + (last if bias else 0)
    expected = jax.nn.gelu(total, approximate=True) if gelu else total
    np.testing.assert_allclose(done.results[0], expected, atol=1e-6)
    assert done.library == [("dot.1", 48)]
    assert done.library_share == 48 / (48 + 2 * 16 * 16 * 32)
    rows = program([replace(step, bias=bias_of(2))], [array(3, 2, 3)], arrays)
    with pytest.raises(Fault, match="a bias"):
        run(rows, *given)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (product(unknown="scale of a"), "dot.1: a library product with scale of a is not known"),
        (Unknown("topk.3", "custom call __cub"), "topk.3: custom call __cub is not known"),
    ],
)
def test_what_nobody_can_do_is_an_error_that_names_it(step: Thunk, said: str):
    with pytest.raises(Fault, match=said):
        run(program([step], [array(4)]))


def test_a_result_that_nobody_wrote_is_an_error():
    with pytest.raises(Fault, match="never written"):
        run(program([], [array(0)]))


def test_a_launch_that_reads_what_its_result_held_before_is_an_error():
    """The bytes of the buffer were written, but for another array."""
    steps = [Fill("before", four(1), 7), kernel("peek", [four(0)], [four(1)])]

    def peek(memory: ProgramMemory, addresses: list[int]) -> None:
        store(memory, addresses[1], memory.read(addresses[1], (4,), F32))

    with pytest.raises(Fault, match="never written"):
        run(program(steps, [array(1)], (array(0),)), ONES, launcher=acting(peek))


def test_later_launches_of_an_instruction_find_what_its_first_step_wrote():
    steps = [Copy("sort", four(0), four(1)), kernel("sort", [], [four(1)])]

    def sort(memory: ProgramMemory, addresses: list[int]) -> None:
        store(memory, addresses[0], np.sort(memory.read(addresses[0], (4,), F32)))

    given = program(steps, [array(1)], (array(0),))
    assert run(given, np.array([3, 1, 2, 0], F32), launcher=acting(sort)).results[0].tolist() == [
        0,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("offset", "said"), [(16, "outside every buffer"), (-16, "outside every buffer"), (0, "")]
)
def test_a_launch_sees_only_its_arguments(offset: int, said: str):
    """Adjacent bytes of the same buffer belong to other arrays."""
    steps = [Fill("all", Slice(1, 0, 64), 0), kernel("write", [four(0)], [four(1, 16)])]

    def write(memory: ProgramMemory, addresses: list[int]) -> None:
        store(memory, addresses[1] + offset, ONES)

    given = program(steps, [array(1, 4)], (array(0),))
    if said:
        with pytest.raises(Fault, match=said):
            run(given, ONES, launcher=acting(write))
    else:
        run(given, ONES, launcher=acting(write))


def test_a_store_to_an_operand_is_an_error():
    def write(memory: ProgramMemory, addresses: list[int]) -> None:
        store(memory, addresses[0], ONES)

    given = program([kernel("write", [four(0)], [four(1)])], [array(0)], (array(0),))
    with pytest.raises(Fault, match="a store to an operand of write"):
        run(given, ONES, launcher=acting(write))


def test_results_that_accumulate_begin_at_zero():
    steps = [Fill("before", four(1), 7), kernel("sum", [], [four(1)], zeroed=(0,))]

    def add(memory: ProgramMemory, addresses: list[int]) -> None:
        store(memory, addresses[0], 1 + memory.read(addresses[0], (4,), F32))

    assert run(program(steps, [array(1)]), launcher=acting(add)).results[0].tolist() == [1] * 4
