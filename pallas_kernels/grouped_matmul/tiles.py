"""How much one program of the experts' kernels multiplies."""

from dataclasses import dataclass

from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.tuning import tuned

_PROGRAMS = 512


@dataclass(frozen=True)
class ExpertTiles:
    """A program multiplies its rows with `columns` outputs, `depth` inputs at a time.

    A step has one scale of a float8 block: depth is at most 128 there.
    """

    columns: int
    depth: int
    warps: int = 4
    stages: int = 2


def row_tile(tokens: int, top_k: int, experts: int) -> int:
    """Rows of a tile: what a matrix instruction takes, more where experts have more than that."""
    mean = tokens * top_k // experts
    return next((rows for rows in (16, 32) if mean <= rows), 64)


def choose_tiles(
    operation: str,
    rows: int,
    hit: int,
    inputs: int,
    outputs: int,
    formats: tuple[QuantFormat | None, QuantFormat | None],
    *,
    wide: bool,
) -> ExpertTiles:
    """For an operation (`expert_gate_up`, `expert_down`); `hit`: about how many tiles of rows;
    formats: of the routed experts and of the shared one; wide: whether rows are float32.

    Narrower columns where 256 compute units would have less than two programs each. Plain weights
    are contiguous along columns: less than 32 would be short reads. A step of float32 has the same
    bytes: what is loaded ahead fills the memory of a workgroup. Raises ValueError where measured
    tiles do not fit the formats.
    """
    narrowest = 32 if None in formats else 16
    columns = next((c for c in (64, 32) if c <= outputs * hit // _PROGRAMS), 16)
    names = [f"{f.weights} {f.activations}" if f else "plain" for f in formats]
    weights = " and ".join(dict.fromkeys(names))
    key = f"{weights} rows {rows} tiles {hit} inputs {inputs} outputs {outputs}"
    heuristic = ExpertTiles(max(columns, narrowest), BLOCK // 2 if wide else BLOCK)
    tiles = tuned(operation, key + " float32" * wide, heuristic)
    if tiles.depth > BLOCK and any(f is not None and f.weights == "fp8_block" for f in formats):
        raise ValueError(f"a step of fp8_block has at most {BLOCK} inputs, got {tiles.depth}")
    return tiles
