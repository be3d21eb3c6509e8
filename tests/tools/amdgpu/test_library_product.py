"""Epilogues of library products: bias and gelu."""

import jax
import numpy as np
import pytest

pytest.importorskip("tinygrad")

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.executable import LibraryProduct, Matrix, Slice
from eagle3_tools.amdgpu.program.library_product import multiply
from eagle3_tools.amdgpu.program.program_memory import ProgramMemory

F32 = np.dtype(np.float32)
ROWS, INNER, COLUMNS = 2, 4, 3


def matrix(buffer: int, rows: int, columns: int) -> Matrix:
    where = Slice(buffer, 0, rows * columns * F32.itemsize)
    return Matrix(where, F32, (1, rows, columns), (0, columns, 1))


def product(bias: int, gelu: bool) -> LibraryProduct:
    left, right = matrix(0, ROWS, INNER), matrix(1, INNER, COLUMNS)
    added, result = matrix(2, ROWS, COLUMNS), matrix(4, ROWS, COLUMNS)
    return LibraryProduct("dot", left, right, added, result, 0.5, 1.0, "", matrix(3, 1, bias), gelu)


def multiplied(given: LibraryProduct) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the result and the operands."""
    operands = [given.left, given.right, given.added, given.bias or given.added]
    sizes = {m.where.buffer: m.where.size for m in (*operands, given.result)}
    memory, rng = ProgramMemory(sizes, 0), np.random.default_rng(0)
    values = [rng.normal(size=m.shape[1:]).astype(F32) for m in operands]
    for m, value in zip(operands, values, strict=True):
        memory.write(memory.address(m.where), value)
    multiply(given, memory)
    return memory.read(memory.address(given.result.where), (ROWS, COLUMNS), F32), values


@pytest.mark.parametrize("gelu", [False, True])
def test_a_bias_belongs_to_columns_and_gelu_is_of_all_that_was_added(gelu: bool):
    found, (left, right, added, bias) = multiplied(product(COLUMNS, gelu))
    total = 0.5 * (left @ right) + added + bias
    expected = jax.nn.gelu(total, approximate=True) if gelu else total
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_bias_of_rows_is_an_error():
    with pytest.raises(Fault, match="a bias"):
        multiplied(product(ROWS, False))
