"""Choice of tiles for the experts' kernels."""

from dataclasses import dataclass, replace

from pallas_kernels import gpu
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.tuning import tuned

_PROGRAMS = 512
_HALF_BLOCK = BLOCK // 2
_ONE_STEP = (256, 512)


@dataclass(frozen=True)
class ExpertTiles:
    """Tile sizes: a program multiplies its rows with `columns` outputs, `depth` inputs at a time. A
    step has one scale of a float8 block, so its depth is at most 128."""

    columns: int
    depth: int
    warps: int = 4
    stages: int = 2


def row_tile(tokens: int, top_k: int, experts: int) -> int:
    """Return the rows of a tile: 16, as matrix instructions take, or more if experts have more."""
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
    """Choose tiles for `expert_gate_up` or `expert_down`.

    Columns are narrower where 256 compute units would have fewer than two programs each. Steps of
    float32 have the same bytes, because loads ahead fill a workgroup's memory.

    hit: approximate number of row tiles. formats: those of the routed experts and of the shared
    one. wide: True if rows are float32. Raises ValueError if measured tiles do not fit the formats.
    """
    most = outputs * hit // _PROGRAMS
    in_groups = formats[0] is not None and formats[0].stored.group is not None
    if in_groups and rows == 16 and not wide and gpu.current().arch == gpu.MI355X.arch:
        heuristic = _of_groups(inputs, most)
    elif operation == "expert_down" and _in_int8(formats) and rows == 16 and not wide:
        # Each program quantises the rows: use few programs with many columns.
        heuristic = ExpertTiles(_columns(256, most), BLOCK, stages=1)
    else:
        heuristic = ExpertTiles(_columns(64, most), _HALF_BLOCK if wide else BLOCK)
    if inputs % BLOCK and inputs % _HALF_BLOCK == 0:
        # Steps of the same bytes that end where the inputs do: past the last input, loads are byte
        # by byte.
        heuristic = replace(heuristic, columns=_columns(128, most), depth=_HALF_BLOCK)
    columns, stages = max(heuristic.columns, _narrowest(formats)), _stages(formats)
    heuristic = replace(heuristic, columns=columns, stages=min(heuristic.stages, stages))
    names = [f"{f.weights} {f.activations}" if f else "plain" for f in formats]
    weights = " and ".join(dict.fromkeys(names))
    key = f"{weights} rows {rows} tiles {hit} inputs {inputs} outputs {outputs}"
    tiles = tuned(operation, key + " float32" * wide, heuristic)
    if tiles.depth > BLOCK and any(f is not None and f.stored.in_blocks for f in formats):
        raise ValueError(f"a step of fp8_block has at most {BLOCK} inputs, got {tiles.depth}")
    return tiles


def _of_groups(inputs: int, most: int) -> ExpertTiles:
    """Choose tiles for four-bit weights with group scales on MI355X: steps of 256, 128 bytes a row.

    Few inputs are one step: all of a program's weights, 32 KiB, are loaded at once. MI325X lacks
    the local memory for either.
    """
    if inputs in _ONE_STEP:
        return ExpertTiles(_columns(2**16 // inputs, most), inputs, stages=1)
    return ExpertTiles(_columns(64, most), 2 * BLOCK)


def _in_int8(formats: tuple[QuantFormat | None, QuantFormat | None]) -> bool:
    return all(f is not None and f.activations == "int8_token" for f in formats)


def _stages(formats: tuple[QuantFormat | None, QuantFormat | None]) -> int:
    """Return the number of stages. MI325X's local memory holds more programs, and so more loads in
    flight, without loading ahead; eight-bit operands are small enough for both."""
    eight_bits = ("fp8_token", "fp8_group", "int8_token")
    small = any(f is not None and f.activations in eight_bits for f in formats)
    return 1 if gpu.current().arch == gpu.MI325X.arch and not small else 2


def _narrowest(formats: tuple[QuantFormat | None, QuantFormat | None]) -> int:
    """Return the fewest columns. Plain weights are contiguous along columns, so fewer than 32 would
    be short reads; float8 needs as many as an NVIDIA warp group multiplies."""
    if any(f is not None and f.activations.startswith("fp8") for f in formats):
        return max(32 if None in formats else 16, gpu.current().warp_group)
    return 32 if None in formats else 16


def _columns(widest: int, most: int) -> int:
    """Return the largest power of two up to both limits, at least 16."""
    columns = widest
    while columns > max(most, 16):
        columns //= 2
    return columns
