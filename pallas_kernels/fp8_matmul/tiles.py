"""Which tiles dense products run with: those that compile without a spill (docs/kernels.md)."""

from pallas_kernels import gpu
from pallas_kernels.quantized.array import BLOCK
from pallas_kernels.tile_product import Operand, ProductTiles
from pallas_kernels.tuning import tuned

LARGEST_TILE = 96 << 10
"""Bytes of rows and weights a step."""
MEMORY_BOUND_ROWS, LARGEST_STAGE = 256, 192 << 10
"""Up to so many rows weights take longer to read than to multiply, and a step of one stage, which
is in registers while it waits, has at most so many bytes."""
COMPUTE_UNITS, MOST_PROGRAMS = 256, 3
"""Of an MI355X; how many programs of a compute unit share its local memory."""
UNDER_WAY, MOST_AHEAD = 288 << 10, 3
"""Bytes that a compute unit's registers have room for while they are on their way, and in how many
steps."""


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
    """For weights like w with so many outputs in one launch (None: those of w).

    weights: how many a program multiplies at once. least: columns of a tile. in_parts: whether what
    reads the product adds up its parts.
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
    """64 columns, whole cache lines of plain weights, and the fewest parts of the inputs with which
    a quarter of the compute units has two programs. Of many rows and columns three fit if they have
    four warps, and half the units get them."""
    rows, columns = _rows_of_tile(x), 64
    programs = _programs(x, outputs, rows, columns)
    many = rows > 64 and (2 * programs >= COMPUTE_UNITS or x.values.dtype.itemsize == 1)
    # In one stage both tiles have the same local memory, one after the other.
    share = 0.5 if many else 0.6
    step = _step(x, w, rows, columns, int(share * gpu.current().lds_bytes))
    steps, least = -(-x.values.shape[1] // step), COMPUTE_UNITS * (2.5 if many else 1.25)
    enough = (n for n in range(1, steps) if steps % n == 0 and n * programs >= least)
    warps = 4 if many else _warps(rows)
    # Of few steps each there is no pipeline to fill: other programs compute meanwhile. Float8 of
    # many rows has registers left for the next step.
    ahead = int(rows > 64 and x.values.dtype.itemsize == 1)
    parts = next(enough, steps)
    return ProductTiles(rows, columns, step, warps, stages=1, parts=parts, ahead=ahead)


def _deep(x: Operand, w: Operand, outputs: int, weights: int, least: int) -> ProductTiles:
    """Columns so few that every compute unit has a program, and steps so long that their loads are
    enough: a program's next step is all that it has under way (docs/kernels.md)."""
    rows = _rows_of_tile(x)
    # What a head pays once a tile costs less than compute units without a program.
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
    """Of two weights that share rows: all rows and few columns, one step in local memory while the
    next ones are on their way to registers. Up to 64 rows two programs may share a compute unit,
    more rows have all of it."""
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
    """Whether `_ahead` compiles without a spill: bfloat16 weights of few rows would, and of many
    rows one step is more than gfx942's local memory."""
    rows, eight_bit = x.values.shape[0], x.values.dtype.itemsize == 1
    return eight_bit or rows > 16 if rows <= 64 else gpu.current().lds_bytes > LARGEST_TILE


def _deepest(x: Operand, w: Operand, outputs: int) -> ProductTiles:
    """One program a compute unit with the longest steps: it waits once in each. Where two stages
    fit, 128 columns have steps of half the length and three on their way, 64 the second stage; of
    masked columns it would spill."""
    rows, columns = _rows_of_tile(x), 128
    if _programs(x, outputs, rows, columns) < COMPUTE_UNITS:
        columns = 64
    inputs = gpu.current().lds_bytes // (rows * x.values.dtype.itemsize)
    one = rows * x.values.dtype.itemsize + columns * w.values.dtype.itemsize
    step = _step(x, w, rows, columns, min(LARGEST_STAGE, inputs * one))
    fits, whole = one * step <= gpu.current().lds_bytes, outputs % columns == 0
    if fits and whole and columns == 128:
        return ProductTiles(rows, columns, step // 2, _warps(rows), stages=1, ahead=MOST_AHEAD)
    # A loop of two steps is no loop, and loads nothing ahead.
    ahead = int(whole and not fits and columns == 64 and x.values.shape[1] > 2 * step)
    stages = 2 if fits and whole else 1
    return ProductTiles(rows, columns, step, _warps(rows), stages=stages, ahead=ahead)


def _pipelined(x: Operand, w: Operand, outputs: int, weights: int, least: int) -> ProductTiles:
    """Where a pipeline's stages have a step under way each. Float8 on NVIDIA GPUs has as many
    columns as a warp group multiplies, and one stage more."""
    eight_bit, rows = x.values.dtype.itemsize == 1, _rows_of_tile(x)
    columns, group = _columns(x, outputs, weights), gpu.current().warp_group if eight_bit else 0
    if rows > 64:
        # 128 columns spill where a warp group has the sums of one instruction, of a step and of
        # all, and where a head's choice follows, which asks for its least.
        columns = max(least, min(columns, group or (least if least > 16 else columns)))
        return ProductTiles(rows, columns, BLOCK if eight_bit else BLOCK // 2, warps=8)
    step = 256 if eight_bit and not w.in_blocks else BLOCK
    return ProductTiles(rows, max(least, columns, group), step, stages=3 if group else 2)


def _rows_of_tile(x: Operand) -> int:
    """All up to 64, so that weights are read once."""
    rows = x.values.shape[0]
    return 128 if rows > 64 else max(16, 1 << (rows - 1).bit_length())


def _columns(x: Operand, outputs: int, weights: int) -> int:
    """A tile of 128 holds two weights' sums with 64 columns of each."""
    if x.values.shape[0] > 64:
        return 128 // weights
    return 64 if outputs >= 16384 else 32 if outputs >= 4096 else 16


def _programs(x: Operand, outputs: int, rows: int, columns: int) -> int:
    """Of a launch that is not split."""
    return -(-x.values.shape[0] // rows) * -(-outputs // columns)


def _warps(rows: int) -> int:
    return 8 if rows > 64 else 4


def _step(x: Operand, w: Operand, rows: int, columns: int, most_bytes: int) -> int:
    """The longest step that divides the inputs, or a block, with at most so many bytes a tile."""
    one = rows * x.values.dtype.itemsize + columns * w.values.dtype.itemsize
    step = 1 << (most_bytes // one).bit_length() - 1
    while step > BLOCK and x.values.shape[1] % step:
        step //= 2
    return step
