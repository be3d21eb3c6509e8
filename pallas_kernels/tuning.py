"""Measured tiles with their times; heuristics where nothing was measured.

An operation ends its choice of tiles with `return tuned("fp8_matmul", key, Tiles(...))`: the key
says what the choice depends on, the tiles are what the heuristic says. `tuned/<arch>.json` holds

    {"device": …, "date": …, "versions": {…},
     "tiles": {operation: {key: {"tiles": {…}, "us": …, "heuristic_us": …}}}}

and is written by `python -m eagle3_tools.kernel_bench --tune` on a GPU of that architecture.
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
    """The tiles on trial, the measured ones for the current GPU, or the heuristic's.

    heuristic: a frozen dataclass. Raises ValueError where the file names fields that it has not.
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
    """operation -> key -> record, as `tuned/<arch>.json` has it; empty where there is none."""
    path = FOLDER / f"{arch}.json"
    return json.loads(path.read_text(encoding="utf-8"))["tiles"] if path.exists() else {}


@contextmanager
def trying(tiles: Mapping[tuple[str, str], Mapping[str, int]]) -> Iterator[Asked]:
    """What is traced meanwhile takes these tiles and heuristics' for the rest; no file counts.

    Gives (operation, key) -> the tiles of every choice that was made.
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
