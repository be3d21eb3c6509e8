"""Write a store item by item into DST.partial, which is renamed to DST when it is complete.

Orbax gives an item its final name once the item is on disk. The journal then lists the item, with
checksums and file sizes, and becomes the manifest when all items are there.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from convert.store.files import (
    ITEMS,
    copy_side_files,
    differences,
    files_below,
    sync_directory,
)
from convert.store.manifest import (
    JOURNAL_FILE,
    Contents,
    Manifest,
    Origin,
    StoredParameter,
    read_journal,
    write_journal,
    write_manifest,
)
from convert.store.orbax_item import save_item
from convert.store.parameters import ITEM_BYTES, Item, Parameter, all_finite, checksum, group

READ_AHEAD_BYTES = 2 * ITEM_BYTES
"""Maximum size of the item being written and the next one, which is read meanwhile if both fit."""
LOCK_FILE = ".lock"
_WHILE_WRITTEN = ".orbax-checkpoint-tmp"
"""Suffix of an item's name while Orbax writes it."""

OnBytes = Callable[[int], None]
Check = Callable[[Manifest], None]


def partial_directory(destination: Path) -> Path:
    """Return the directory in which a store is built until it is complete."""
    return destination.with_name(destination.name + ".partial")


def refuse_existing(destination: Path) -> None:
    """Raise ValueError if the destination exists."""
    if destination.exists() or destination.is_symlink():
        raise ValueError(f"{destination} exists; give a new directory, or delete it first")


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
    items = group(parameters, item_bytes)
    partial = partial_directory(destination)
    with _claimed(partial):
        contents = read_journal(partial, origin)
        finished = _check_finished(partial, items, contents)
        write_journal(partial, origin, contents)
        (partial / ITEMS).mkdir(exist_ok=True)
        for entry in (partial / ITEMS).iterdir():
            if entry.name not in finished:
                shutil.rmtree(entry)
        on_resumed(sum(item.nbytes for item in items if item.name in finished))
        unfinished = [item for item in items if item.name not in finished]
        contents = _write_items(partial, unfinished, origin, contents, on_bytes)
        check(Manifest(origin, contents))
        contents = replace(contents, side_files=copy_side_files(side_files, partial))
        write_manifest(partial, manifest := Manifest(origin, contents))
        refuse_existing(destination)
        os.rename(partial, destination)
        sync_directory(destination.parent)
        for name in (JOURNAL_FILE, LOCK_FILE):
            (destination / name).unlink()
        return manifest


@contextmanager
def _claimed(partial: Path) -> Iterator[None]:
    """Create the directory, or take over that of an interrupted run; lock it for the block.

    Raises ValueError, and changes nothing, for a link, for content without a journal, and for a
    directory that another process writes.
    """
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise ValueError(
            f"{partial} is not an unfinished conversion; move it away, or give another DST"
        )
    partial.mkdir(parents=True, exist_ok=True)
    journal, lock = partial / JOURNAL_FILE, partial / LOCK_FILE
    # A run that was killed while it wrote its journal leaves a temporary file.
    torn = list(partial.glob(f".{JOURNAL_FILE}.*.partial"))
    others = set(partial.iterdir()) - {journal, lock, *torn}
    if journal.is_symlink() or lock.is_symlink() or (others and not journal.exists()):
        raise ValueError(
            f"{partial} has content, but no journal ({JOURNAL_FILE}) of an interrupted run; move "
            "it away, or give another DST"
        )
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is writing {partial}; wait for it") from error
        for file_of_killed in torn:
            file_of_killed.unlink(missing_ok=True)
        yield


def _check_finished(partial: Path, items: Sequence[Item], contents: Contents) -> set[str]:
    """Return the names of finished items.

    Raises ValueError for finished items that differ from the plan or from their files, for links,
    and for entries that no run of ours created.
    """
    finished = {parameter.item for parameter in contents.parameters}
    planned = [(i.name, p.path, p.shape, p.dtype.name) for i in items for p in i.parameters]
    done = [(p.item, p.path, p.shape, p.dtype) for p in contents.parameters]
    if done != [entry for entry in planned if entry[0] in finished]:
        raise ValueError(
            f"{partial} was begun with other items (--item-mib, or another version); delete it to "
            "start again"
        )
    found = files_below(partial / ITEMS, partial)
    kept = {name: size for name, size in found.items() if Path(name).parts[1] in finished}
    if lost := differences(kept, contents.files):
        raise ValueError(
            f"{partial}: a finished item has changed: {lost[0]}; delete {partial} to start again"
        )
    names = {item.name for item in items}
    for entry in (partial / ITEMS).glob("*"):
        if entry.name.partition(_WHILE_WRITTEN)[0] not in names or not entry.is_dir():
            raise ValueError(f"{entry} is not ours; move it away, or give another DST")
    return finished


def _write_items(
    partial: Path, items: Sequence[Item], origin: Origin, contents: Contents, on_bytes: OnBytes
) -> Contents:
    """Write items, while one thread reads ahead and another computes checksums."""
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as hasher:
        ahead = None
        for item, following in zip_longest(items, items[1:]):
            try:
                arrays = (ahead or reader.submit(_read, item)).result()
            except ValueError:  # Bad values, which a resumed run cannot cure.
                _discard(partial)
                raise
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
            contents = Contents(
                (*contents.parameters, *(entry.result() for entry in stored)),
                {**contents.files, **files_below(partial / ITEMS / item.name, partial)},
            )
            write_journal(partial, origin, contents)
            on_bytes(item.nbytes)
    return contents


def _read(item: Item) -> dict[str, np.ndarray]:
    arrays = {}
    for parameter in item.parameters:
        array = parameter.read()
        assert array.shape == parameter.shape and array.dtype == parameter.dtype, parameter
        arrays[parameter.path] = array
    return arrays


def _discard(partial: Path) -> None:
    """Delete the run's files, and the directory if it contains no others."""
    shutil.rmtree(partial / ITEMS)
    for name in (JOURNAL_FILE, LOCK_FILE):
        (partial / name).unlink()
    if not any(partial.iterdir()):
        partial.rmdir()


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
