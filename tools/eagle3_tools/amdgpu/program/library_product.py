"""A product that XLA leaves to hipBLASLt or rocBLAS: NumPy's, in the place of the library's.

This is no machine code of ours or of XLA's, so what it proves is nothing; it is listed with its
share of a program's products.
"""

import math
import re
from collections.abc import Mapping

import numpy as np

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.executable import LibraryProduct, Matrix
from eagle3_tools.amdgpu.program.program_memory import ProgramMemory

_TILE = re.compile(r"v_s?mfma_\w*?_(\d+)x(\d+)x(\d+)(?:_(\d+)b)?")


def multiply(product: LibraryProduct, memory: ProgramMemory) -> None:
    """alpha * left @ right + beta * added + bias, and gelu of it, in float64, rounded to float32,
    then to the result.

    Raises Fault for what the library would do besides.
    """
    if product.unknown:
        raise Fault(f"{product.name}: a library product with {product.unknown} is not known")
    left, right = (_read(m, memory) for m in (product.left, product.right))
    total = product.alpha * (left @ right)
    if product.beta:
        total += product.beta * _read(product.added, memory)
    if product.bias:
        total += _bias(product.bias, product.result, memory)
    if product.gelu:
        total *= 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (total + 0.044715 * total**3)))
    result = product.result
    elements = np.zeros(result.where.size // result.dtype.itemsize, result.dtype)
    _strided(elements, result)[:] = total.astype(np.float32).astype(result.dtype)
    memory.write(memory.address(result.where), elements)


def _bias(bias: Matrix, result: Matrix, memory: ProgramMemory) -> np.ndarray:
    """One number for each column of a result whose columns are neighbours."""
    if bias.shape[2] != result.shape[2] or result.stride[2] != 1:
        raise Fault(f"a bias {bias.shape} for {result.shape} of strides {result.stride}")
    return _read(bias, memory)


def matrix_flops(instructions: Mapping[str, int]) -> int:
    """What matrix instructions multiply and add, padding included; how often by mnemonic."""
    tiles = ((_TILE.match(name), count) for name, count in instructions.items())
    return sum(2 * count * _size(tile) for tile, count in tiles if tile)


def _size(tile: re.Match[str]) -> int:
    rows, columns, inner, blocks = (int(number or 1) for number in tile.groups())
    return rows * columns * inner * blocks


def _read(matrix: Matrix, memory: ProgramMemory) -> np.ndarray:
    count = matrix.where.size // matrix.dtype.itemsize
    elements = memory.read(memory.address(matrix.where), (count,), matrix.dtype)
    return _strided(elements, matrix).astype(np.float64)


def _strided(elements: np.ndarray, matrix: Matrix) -> np.ndarray:
    last = sum((size - 1) * step for size, step in zip(matrix.shape, matrix.stride, strict=True))
    if last >= elements.size:
        raise Fault(f"a matrix {matrix.shape} of strides {matrix.stride} leaves {matrix.where}")
    strides = [step * matrix.dtype.itemsize for step in matrix.stride]
    return np.lib.stride_tricks.as_strided(elements, matrix.shape, strides)
