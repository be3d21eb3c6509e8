"""Write a store item by item into DST.partial, which is renamed to DST when it is complete."""

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from convert.store.array_bytes import all_finite, checksum
from convert.store.files import files_below, sync_directory
from convert.store.groups import ITEM_BYTES, Item, group
from convert.store.journal import JOURNAL_FILE, Journal
from convert.store.manifest import Contents, Manifest, Origin, write_manifest
from convert.store.orbax_item import save_item
from convert.store.parameter import Parameter
from convert.store.partial import (
    ITEMS,
    check_items,
    claim,
    discard,
    partial_directory,
    refuse_existing,
)
from convert.store.records import FinishedItem, StoredParameter
from convert.store.source import copy_side_files

READ_AHEAD_BYTES = 2 * ITEM_BYTES
"""Maximum size of the item being written and the next one, which is read meanwhile if both fit."""

OnBytes = Callable[[int], None]
Check = Callable[[Manifest], None]


def write_store(
    destination: Path,
    parameters: Sequence[Parameter],
    origin: Origin,
    *,
    side_files: Path,
    item_bytes: int = ITEM_BYTES,
    check: Check = lambda _: None,
    on_resumed: OnBytes = lambda _: None,
    on_bytes: OnBytes = lambda _: None,
) -> Manifest:
    """Write all parameters, resuming an interrupted run.

    `side_files` is the directory whose configuration and tokenizer are copied. `check` is called
    when every item is on disk; if it raises, the destination does not appear and the partial
    directory stays to be resumed. `on_resumed` receives the bytes of earlier runs, `on_bytes` those
    of each item that is on disk. Peak memory is the largest item or READ_AHEAD_BYTES, whichever is
    more, plus a few hundred MiB. Raises ValueError for bad values (and deletes the partial
    directory), for an existing destination, and for a partial directory of another request or not
    of ours.
    """
    destination = destination.absolute()
    refuse_existing(destination)
    items = {item.name: item for item in group(parameters, item_bytes)}
    partial = partial_directory(destination)
    claim(partial)
    with Journal.open(partial, _request(items.values(), origin)) as journal:
        (partial / ITEMS).mkdir(exist_ok=True)
        for unfinished in check_items(partial, items, journal.finished):
            shutil.rmtree(unfinished)
        open_items = [item for name, item in items.items() if name not in journal.finished]
        on_resumed(sum(items[name].nbytes for name in journal.finished))
        _write_items(partial, open_items, journal, on_bytes)
        manifest = Manifest(origin, _contents(journal, items))
        check(manifest)
        return _finish(partial, destination, manifest, side_files)


def _request(items: Iterable[Item], origin: Origin) -> dict[str, Any]:
    """Return the facts that must be equal in a run and the run that resumes it."""
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


def _write_items(partial: Path, items: Sequence[Item], journal: Journal, on_bytes: OnBytes) -> None:
    """Write items, while one thread reads ahead and another computes checksums."""
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as hasher:
        ahead = None
        for item, following in zip_longest(items, items[1:]):
            arrays = _arrays(ahead or reader.submit(_read, item), partial)
            fits = following and item.nbytes + following.nbytes <= READ_AHEAD_BYTES
            ahead = reader.submit(_read, following) if following and fits else None
            stored = [
                hasher.submit(_describe, item.name, parameter, arrays[parameter.path])
                for parameter in item.parameters
            ]
            save_item(partial / ITEMS / item.name, arrays)
            # A reference would keep the arrays in memory while the next ones are read.
            del arrays
            sync_directory(partial / ITEMS)
            entries = tuple(entry.result() for entry in stored)
            files = files_below(partial / ITEMS / item.name)
            journal.append(FinishedItem(item.name, entries, files))
            on_bytes(item.nbytes)


def _read(item: Item) -> dict[str, np.ndarray]:
    arrays = {}
    for parameter in item.parameters:
        array = parameter.read()
        assert array.shape == parameter.shape and array.dtype == parameter.dtype, parameter
        arrays[parameter.path] = array
    return arrays


def _arrays(reading: Future[dict[str, np.ndarray]], partial: Path) -> dict[str, np.ndarray]:
    """Return the arrays; after bad values, which a resumed run cannot cure, delete the store."""
    try:
        return reading.result()
    except ValueError:
        discard(partial)
        raise


def _describe(item: str, parameter: Parameter, array: np.ndarray) -> StoredParameter:
    return StoredParameter(
        path=parameter.path,
        item=item,
        shape=parameter.shape,
        dtype=parameter.dtype.name,
        nbytes=parameter.nbytes,
        checksum=checksum(array),
        nonfinite=_nonfinite(parameter, array),
    )


def _nonfinite(parameter: Parameter, array: np.ndarray) -> tuple[str, ...]:
    """Return the names of the tensors that hold NaN or infinities."""
    if all_finite(array):
        return ()
    tensors = parameter.tensors or (parameter.path,)
    if len(tensors) == 1:
        return tensors
    return tuple(name for name, row in zip(tensors, array, strict=True) if not all_finite(row))


def _contents(journal: Journal, items: Iterable[str]) -> Contents:
    finished = [journal.finished[name] for name in items]
    return Contents(
        parameters=tuple(entry for item in finished for entry in item.parameters),
        files={
            f"{ITEMS}/{i.item}/{name}": size for i in finished for name, size in i.files.items()
        },
        side_files={},
    )


def _finish(partial: Path, destination: Path, manifest: Manifest, side_files: Path) -> Manifest:
    copied = copy_side_files(side_files, partial)
    manifest = replace(manifest, contents=replace(manifest.contents, side_files=copied))
    write_manifest(partial, manifest)
    refuse_existing(destination)
    os.rename(partial, destination)
    sync_directory(destination.parent)
    (destination / JOURNAL_FILE).unlink()
    return manifest
