"""Write a store: item by item into DST.partial, which becomes DST when all is there."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from convert.store.checksum import checksum
from convert.store.durable import sync_directory
from convert.store.groups import ITEM_BYTES, Item, group
from convert.store.journal import JOURNAL_FILE, Journal
from convert.store.manifest import Manifest, Origin, StoredParameter, write_manifest
from convert.store.orbax_item import save_item
from convert.store.parameter import Parameter
from convert.store.source import copy_side_files

READ_AHEAD_BYTES = 2 * ITEM_BYTES
"""The next item is read while this one is written only if both fit in here."""
ITEMS = "items"

OnBytes = Callable[[int], None]


def partial_directory(destination: Path) -> Path:
    """Where a store is built until it is complete."""
    return destination.with_name(destination.name + ".partial")


def refuse_existing(destination: Path) -> None:
    """Raises ValueError when there is something at the destination."""
    if destination.exists() or destination.is_symlink():
        raise ValueError(f"{destination} exists; give a new directory, or delete it first")


def write_store(
    destination: Path,
    parameters: Sequence[Parameter],
    origin: Origin,
    *,
    side_files: Path,
    item_bytes: int = ITEM_BYTES,
    on_resumed: OnBytes = lambda _: None,
    on_bytes: OnBytes = lambda _: None,
) -> Manifest:
    """Writes all parameters, resuming what an earlier run has finished.

    `side_files` is the directory whose configuration and tokenizer are copied; `on_resumed`
    is told how many bytes earlier runs have written, `on_bytes` of every item that is on disk.
    Peak memory is the largest item, or READ_AHEAD_BYTES if
    that is more, and a few hundred MiB. Raises ValueError for bad values, and then leaves
    nothing; for a destination that exists; and for a partial one that was begun otherwise.
    """
    destination = destination.absolute()
    refuse_existing(destination)
    items = group(parameters, item_bytes)
    partial = partial_directory(destination)
    (partial / ITEMS).mkdir(parents=True, exist_ok=True)
    journal = Journal.open(partial, _request(items, origin))
    try:
        _remove_unfinished(partial / ITEMS, set(journal.finished))
        open_items = [item for item in items if item.name not in journal.finished]
        on_resumed(sum(item.nbytes for item in items if item.name in journal.finished))
        _write_items(partial, open_items, journal, on_bytes)
        stored = tuple(entry for item in items for entry in journal.finished[item.name])
        return _finish(partial, destination, Manifest(origin, stored), side_files)
    finally:
        journal.close()


def _request(items: Sequence[Item], origin: Origin) -> dict[str, Any]:
    """What must agree between a run and the one that resumes it."""
    plan = [
        (item.name, [(p.path, p.shape, p.dtype.name) for p in item.parameters]) for item in items
    ]
    return {
        "source": [asdict(file) for file in origin.source],
        "arch": origin.arch,
        "options": dict(origin.options),
        "formats": dict(origin.formats),
        "plan": plan,
    }


def _remove_unfinished(directory: Path, finished: set[str]) -> None:
    for entry in directory.iterdir():
        if entry.name not in finished:
            shutil.rmtree(entry)


def _write_items(partial: Path, items: Sequence[Item], journal: Journal, on_bytes: OnBytes) -> None:
    """One thread reads ahead, one computes checksums, this one waits for the disk."""
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as hasher:
        ahead = None
        for item, following in zip_longest(items, items[1:]):
            arrays = _arrays(ahead or reader.submit(_read, item), partial)
            fits = following and item.nbytes + following.nbytes <= READ_AHEAD_BYTES
            ahead = reader.submit(_read, following) if following and fits else None
            sums = {path: hasher.submit(checksum, array) for path, array in arrays.items()}
            save_item(partial / ITEMS / item.name, arrays)
            # A name for the arrays would keep them in memory while the next ones are read.
            del arrays
            sync_directory(partial / ITEMS)
            journal.append(item.name, [_stored(item, p, sums) for p in item.parameters])
            on_bytes(item.nbytes)


def _read(item: Item) -> dict[str, np.ndarray]:
    arrays = {}
    for parameter in item.parameters:
        array = parameter.read()
        assert array.shape == parameter.shape and array.dtype == parameter.dtype, parameter
        arrays[parameter.path] = array
    return arrays


def _arrays(reading: Future[dict[str, np.ndarray]], partial: Path) -> dict[str, np.ndarray]:
    """Bad values can't become good by resuming: nothing is left of the run."""
    try:
        return reading.result()
    except ValueError:
        shutil.rmtree(partial)
        raise


def _stored(item: Item, parameter: Parameter, sums: Mapping[str, Future[str]]) -> StoredParameter:
    return StoredParameter(
        path=parameter.path,
        item=item.name,
        shape=parameter.shape,
        dtype=parameter.dtype.name,
        nbytes=parameter.nbytes,
        checksum=sums[parameter.path].result(),
    )


def _finish(partial: Path, destination: Path, manifest: Manifest, side_files: Path) -> Manifest:
    copy_side_files(side_files, partial)
    write_manifest(partial, manifest)
    refuse_existing(destination)
    os.rename(partial, destination)
    sync_directory(destination.parent)
    (destination / JOURNAL_FILE).unlink()
    return manifest
