"""The flags of the KV cache's numbers, of eagle3-serve and eagle3-bench."""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_jax.engine import KVScales

DTYPES = ("auto", "bfloat16", "fp8", "fp8_e4m3")
HOW_TO_MEASURE = "eagle3-bench kv-cache --model MODEL --draft DRAFT --measure FILE"


def add_scale_flag(parser: Any) -> None:
    """--kv-cache-scale, to a parser or a group of one."""
    parser.add_argument(
        "--kv-cache-scale",
        metavar="FILE|X",
        help=f"factors of an fp8 cache: FILE, one a pool ({HOW_TO_MEASURE}); or X for all pools",
    )


def read_scale(flags: argparse.Namespace) -> "float | KVScales | None":
    """--kv-cache-scale beside --kv-cache-dtype: a positive number, the KVScales of a file, or None.

    Raises ValueError where float8 has no factor: one that nobody chose would saturate in silence.
    """
    given, is_float8 = flags.kv_cache_scale, flags.kv_cache_dtype.startswith("fp8")
    if given is None and is_float8:
        raise ValueError(
            "--kv-cache-dtype fp8 needs --kv-cache-scale: a FILE of factors measured for this pair "
            f"({HOW_TO_MEASURE}), or a number for all pools"
        )
    if given is not None and not is_float8:
        raise ValueError("--kv-cache-scale needs --kv-cache-dtype fp8")
    return None if given is None else parse_scale(given)


def parse_scale(given: str) -> "float | KVScales":
    """A positive number or the KVScales of a file; ValueError for what is neither."""
    try:
        scale = float(given)
    except ValueError:
        return _read_file(Path(given))
    if not 0 < scale < math.inf:
        raise ValueError(f"--kv-cache-scale must be positive; got {given}")
    return scale


def _read_file(path: Path) -> "KVScales":
    # Only here: flags are read before anything imports JAX.
    from serve.kv_scale_file import read_kv_scales

    try:
        return read_kv_scales(path)
    except OSError as error:
        raise ValueError(
            "--kv-cache-scale must be a number or a file that can be read; "
            f"{path}: {error.strerror}"
        ) from error
