"""How much one program of the experts' kernels multiplies."""

from dataclasses import dataclass

from pallas_kernels import gpu
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.tuning import tuned

_PROGRAMS = 512


@dataclass(frozen=True)
class Tiles:
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
) -> Tiles:
    """For an operation (`expert_gate_up`, `expert_down`); `hit`: about how many tiles of rows;
    formats: of the routed experts and of the shared one.

    Narrower columns where 256 compute units would have less than two programs each. Plain weights
    are contiguous along columns: less than 32 would be short reads.
    """
    narrowest = 32 if None in formats else 16
    # Interpreted, programs run one after the other.
    wanted = 64 if gpu.interpreted() else outputs * hit // _PROGRAMS
    columns = next((c for c in (64, 32) if c <= wanted), 16)
    names = [f"{f.weights} {f.activations}" if f else "plain" for f in formats]
    weights = " beside ".join(dict.fromkeys(names))
    key = f"{weights} rows {rows} tiles {hit} inputs {inputs} outputs {outputs}"
    return tuned(operation, key, Tiles(columns=max(columns, narrowest), depth=BLOCK))
