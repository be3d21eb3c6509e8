"""Choice of tiles for dense products: tiles that compile without a spill (docs/kernels.md)."""

from pallas_kernels import gpu
from pallas_kernels.quantized.formats import BLOCK
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.tuning import tuned

LARGEST_TILE = 96 << 10
"""Largest size in bytes of one step's rows and weights."""
MEMORY_BOUND_ROWS, LARGEST_STAGE = 256, 192 << 10
"""Up to MEMORY_BOUND_ROWS rows, weights take longer to read than to multiply. A step of a single
stage waits in registers, which hold LARGEST_STAGE bytes."""
COMPUTE_UNITS, MOST_PROGRAMS = 256, 3
"""Compute units of an MI355X; the most programs of a unit that share its local memory."""
UNDER_WAY, MOST_AHEAD = 288 << 10, 3
"""Bytes of loads in flight that a compute unit's registers can hold, and in how many steps."""


def choose_tiles(
    operation: str,
    x: Operand,
    w: Operand,
    outputs: int | None = None,
    *,
    weights: int = 1,
    least: int = 16,
    in_parts: bool = False,
) -> ProductTiles:
    """Choose tiles for weights like w with `outputs` columns in one launch (None: those of w).

    weights: number of weights that a program multiplies at once. least: fewest columns of a tile.
    in_parts: True if the consumer of the product adds up `PartialSums`.
    """
    (rows, inputs), outputs = x.values.shape, outputs or w.outputs
    amd = gpu.current().is_amd and not w.in_blocks
    few = _programs(x, outputs, _rows_of_tile(x), 128) < COMPUTE_UNITS
    alike = x.values.dtype == w.values.dtype and w.values.dtype.itemsize <= 2
    if amd and in_parts and few:
        heuristic = _split(x, w, outputs)
    elif amd and alike and not in_parts and weights == 1 and 64 < rows <= MEMORY_BOUND_ROWS:
        heuristic = _deepest(x, w, outputs)
    elif amd and weights == 2 and _has_room(x):
        heuristic = _ahead(x, w, outputs)
    elif amd:
        heuristic = _deep(x, w, outputs, weights, least)
    else:
        heuristic = _pipelined(x, w, outputs, weights, least)
    kind = f"{w.values.dtype} {'blocks' if w.in_blocks else 'columns'}{' in parts' * in_parts}"
    key = f"rows {rows} inputs {inputs} outputs {outputs} {x.values.dtype} times {kind}"
    return tuned(operation, key, heuristic)


def _split(x: Operand, w: Operand, outputs: int) -> ProductTiles:
    """Choose 64 columns (whole cache lines of plain weights) and split the inputs. Takes the fewest
    parts with which a quarter of the compute units have two programs. With many rows and columns,
    three programs of four warps fit, and half of the units get three."""
    rows, columns = _rows_of_tile(x), 64
    programs = _programs(x, outputs, rows, columns)
    many = rows > 64 and (2 * programs >= COMPUTE_UNITS or x.values.dtype.itemsize == 1)
    # With one stage, both tiles use the same local memory, one after the other.
    share = 0.5 if many else 0.6
    step = _step(x, w, rows, columns, int(share * gpu.current().lds_bytes))
    steps, least = -(-x.values.shape[1] // step), COMPUTE_UNITS * (2.5 if many else 1.25)
    enough = (n for n in range(1, steps) if steps % n == 0 and n * programs >= least)
    warps = 4 if many else _warps(rows)
    # With few steps there is no pipeline to fill: other programs compute in the meantime. Float8
    # with many rows has registers left for the next step.
    ahead = int(rows > 64 and x.values.dtype.itemsize == 1)
    parts = next(enough, steps)
    return ProductTiles(rows, columns, step, warps, stages=1, parts=parts, ahead=ahead)


def _deep(x: Operand, w: Operand, outputs: int, weights: int, least: int) -> ProductTiles:
    """Choose few columns, so that every compute unit has a program, and long steps, because only a
    program's next step is in flight (docs/kernels.md)."""
    rows = _rows_of_tile(x)
    # The per-tile cost of a vocabulary head is less than that of idle compute units.
    least = least if _programs(x, outputs, rows, least) >= COMPUTE_UNITS else 16
    columns = max(least, _columns(x, outputs, weights))
    if rows > 64 and _programs(x, outputs, rows, columns) < COMPUTE_UNITS:
        rows, columns = rows // 2, columns // 2

    def deepest(columns: int) -> ProductTiles:
        programs = -(-_programs(x, outputs, rows, columns) // COMPUTE_UNITS)
        lds = gpu.current().lds_bytes // min(programs, MOST_PROGRAMS)
        step = _step(x, w, rows, weights * columns, min(LARGEST_TILE, lds))
        return ProductTiles(rows, columns, step, warps=_warps(rows))

    found, finer = deepest(columns), deepest(max(least, 16, columns // 2))
    few = _programs(x, outputs, rows, columns) < COMPUTE_UNITS
    return finer if few and finer.step == found.step else found


def _ahead(x: Operand, w: Operand, outputs: int) -> ProductTiles:
    """Choose tiles of two weights that share rows: all rows, few columns, and steps loaded ahead.
    One step is in local memory while the next ones are loaded into registers. Up to 64 rows, two
    programs may share a compute unit; more rows use all of it."""
    many, columns = x.values.shape[0] > 64, 16
    rows = 256 if many else _rows_of_tile(x)
    sharing = 1
    if _programs(x, outputs, rows, columns) > COMPUTE_UNITS:
        columns, sharing = (32, 1) if many else (16, 2)
    share = UNDER_WAY // sharing
    step = _step(x, w, rows, 2 * columns, share // 2)
    step = min(step, gpu.current().lds_bytes // (sharing * rows * x.values.dtype.itemsize))
    tile = step * (rows * x.values.dtype.itemsize + 2 * columns * w.values.dtype.itemsize)
    ahead = min(MOST_AHEAD, share // tile)
    return ProductTiles(rows, columns, step, _warps(rows), stages=1, ahead=ahead)


def _has_room(x: Operand) -> bool:
    """Return whether `_ahead` compiles without a spill: bfloat16 weights of up to 16 rows would
    spill, and with many rows one step exceeds gfx942's local memory."""
    rows, eight_bit = x.values.shape[0], x.values.dtype.itemsize == 1
    return eight_bit or rows > 16 if rows <= 64 else gpu.current().lds_bytes > LARGEST_TILE


def _deepest(x: Operand, w: Operand, outputs: int) -> ProductTiles:
    """Choose one program for each compute unit with the longest steps: it waits once in each. Where
    two stages fit, 128 columns have steps of half the length with three in flight, and 64 columns
    have the second stage. With masked columns it would spill."""
    rows, columns = _rows_of_tile(x), 128
    if _programs(x, outputs, rows, columns) < COMPUTE_UNITS:
        columns = 64
    inputs = gpu.current().lds_bytes // (rows * x.values.dtype.itemsize)
    one = rows * x.values.dtype.itemsize + columns * w.values.dtype.itemsize
    step = _step(x, w, rows, columns, min(LARGEST_STAGE, inputs * one))
    fits, whole = one * step <= gpu.current().lds_bytes, outputs % columns == 0
    if fits and whole and columns == 128:
        return ProductTiles(rows, columns, step // 2, _warps(rows), stages=1, ahead=MOST_AHEAD)
    # The compiler unrolls a loop of two steps, which then loads nothing ahead.
    ahead = int(whole and not fits and columns == 64 and x.values.shape[1] > 2 * step)
    stages = 2 if fits and whole else 1
    return ProductTiles(rows, columns, step, _warps(rows), stages=stages, ahead=ahead)


def _pipelined(x: Operand, w: Operand, outputs: int, weights: int, least: int) -> ProductTiles:
    """Choose tiles for GPUs where each pipeline stage has a step in flight. Float8 on NVIDIA GPUs
    has as many columns as a warp group multiplies, and one stage more."""
    eight_bit, rows = x.values.dtype.itemsize == 1, _rows_of_tile(x)
    columns, group = _columns(x, outputs, weights), gpu.current().warp_group if eight_bit else 0
    if rows > 64:
        # 128 columns spill where a warp group holds the sums of an instruction, of a step and of
        # all steps, and where a vocabulary head, which sets `least`, chooses tokens afterwards.
        columns = max(least, min(columns, group or (least if least > 16 else columns)))
        return ProductTiles(rows, columns, BLOCK if eight_bit else BLOCK // 2, warps=8)
    step = 256 if eight_bit and not w.in_blocks else BLOCK
    return ProductTiles(rows, max(least, columns, group), step, stages=3 if group else 2)


def _rows_of_tile(x: Operand) -> int:
    """Return the rows of a tile: all of up to 64, so that weights are read once."""
    rows = x.values.shape[0]
    return 128 if rows > 64 else max(16, 1 << (rows - 1).bit_length())


def _columns(x: Operand, outputs: int, weights: int) -> int:
    """Return the columns of a tile. With 128 rows, two weights have 64 columns each."""
    if x.values.shape[0] > 64:
        return 128 // weights
    return 64 if outputs >= 16384 else 32 if outputs >= 4096 else 16


def _programs(x: Operand, outputs: int, rows: int, columns: int) -> int:
    """Return the number of programs of a launch without split-K."""
    return -(-x.values.shape[0] // rows) * -(-outputs // columns)


def _warps(rows: int) -> int:
    return 8 if rows > 64 else 4


def _step(x: Operand, w: Operand, rows: int, columns: int, most_bytes: int) -> int:
    """Return the longest step that divides the inputs, or a block, within `most_bytes` a tile."""
    one = rows * x.values.dtype.itemsize + columns * w.values.dtype.itemsize
    step = 1 << (most_bytes // one).bit_length() - 1
    while step > BLOCK and x.values.shape[1] % step:
        step //= 2
    return step
