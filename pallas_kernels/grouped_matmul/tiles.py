"""How much one program of the experts' kernels multiplies."""

from dataclasses import dataclass

from pallas_kernels.quantized import QuantFormat


@dataclass(frozen=True)
class Tiles:
    """A program multiplies its rows with `columns` outputs, `depth` inputs at a time."""

    columns: int
    depth: int
    warps: int = 4
    stages: int = 2


def row_tile(tokens: int, top_k: int, experts: int) -> int:
    """Rows of a tile: what a matrix instruction takes, more where experts have more than that."""
    mean = tokens * top_k // experts
    return next((rows for rows in (16, 32) if mean <= rows), 64)


def choose_tiles(outputs: int, format: QuantFormat | None, arch: str) -> Tiles:
    """What the compiler kept in registers on both architectures."""
    return Tiles(columns=64, depth=128)
