"""Measured tile sizes with their times; a heuristic applies where nothing was measured.

An operation ends its choice of tiles with `return tuned("fp8_matmul", key, Tiles(...))`: the key
holds everything that the choice depends on, and the tiles are those of the heuristic. The file
`tuned/<arch>.json` is written by `python -m eagle3_tools.kernel_bench --tune` on a GPU of that
architecture:

    {"device": …, "date": …, "versions": {…},
     "tiles": {operation: {key: {"tiles": {…}, "us": …, "heuristic_us": …}}}}
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pallas_kernels import gpu

T = TypeVar("T")
FOLDER = Path(__file__).parent / "tuned"
Asked = dict[tuple[str, str], dict[str, int]]

_trial: ContextVar[Mapping[tuple[str, str], Mapping[str, int]] | None] = ContextVar("trial")
_asked: ContextVar[Asked | None] = ContextVar("asked", default=None)


def tuned(operation: str, key: str, heuristic: T) -> T:
    """Return the tiles of an active `trying` context, else measured tiles, else the heuristic's.

    `heuristic` is a frozen dataclass. Raises ValueError if the file has fields that it lacks.
    """
    trial = _trial.get(None)
    entry = measured(gpu.current().arch).get(operation, {}).get(key, {}).get("tiles")
    found = entry if trial is None else trial.get((operation, key))
    tiles = heuristic if found is None else _replaced(operation, key, heuristic, found)
    asked = _asked.get()
    if asked is not None:
        asked[operation, key] = asdict(tiles)  # pyright: ignore[reportArgumentType]
    return tiles


@cache
def measured(arch: str) -> dict[str, dict[str, Any]]:
    """Read `tuned/<arch>.json`: operation -> key -> record; empty if there is no file."""
    path = FOLDER / f"{arch}.json"
    return json.loads(path.read_text(encoding="utf-8"))["tiles"] if path.exists() else {}


@contextmanager
def trying(tiles: Mapping[tuple[str, str], Mapping[str, int]]) -> Iterator[Asked]:
    """Use `tiles` while tracing, and the heuristic for everything else, ignoring measured tiles.

    Yields a dict that receives the tiles of every choice made: (operation, key) -> tiles.
    """
    asked: Asked = {}
    tokens = _trial.set(tiles), _asked.set(asked)
    try:
        yield asked
    finally:
        _trial.reset(tokens[0])
        _asked.reset(tokens[1])


def _replaced(operation: str, key: str, tiles: Any, found: Mapping[str, int]) -> Any:
    try:
        return replace(tiles, **found)
    except TypeError as error:
        raise ValueError(
            f"tuned tiles of {operation} {key}: expected {', '.join(asdict(tiles))}; "
            f"got {', '.join(found)}; run the tuner again or delete the entry"
        ) from error
