"""Manage the directory in which a store is built, without touching foreign files."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from convert.store.files import differences, files_below
from convert.store.groups import Item
from convert.store.journal import JOURNAL_FILE, Finished
from convert.store.records import FinishedItem

ITEMS = "items"
_UNFINISHED = ".orbax-checkpoint-tmp"
"""Suffix of an item's name while Orbax writes it."""


def partial_directory(destination: Path) -> Path:
    """Return the directory in which a store is built until it is complete."""
    return destination.with_name(destination.name + ".partial")


def refuse_existing(destination: Path) -> None:
    """Raise ValueError if the destination exists."""
    if destination.exists() or destination.is_symlink():
        raise ValueError(f"{destination} exists; give a new directory, or delete it first")


def claim(partial: Path) -> None:
    """Create the directory, or take over that of an interrupted run.

    Raises ValueError, and changes nothing, for a link or for content without a journal.
    """
    if partial.is_symlink() or (partial.exists() and not partial.is_dir()):
        raise ValueError(f"{partial} is no directory of ours; move it away, or give another DST")
    journal = partial / JOURNAL_FILE
    partial.mkdir(parents=True, exist_ok=True)
    others = any(entry != journal for entry in partial.iterdir())
    if journal.is_symlink() or (others and not _has_begun(journal)):
        raise ValueError(
            f"{partial} has content, but no journal of an interrupted run; move it away, or give "
            "another DST"
        )


def check_items(partial: Path, items: Mapping[str, Item], finished: Finished) -> list[Path]:
    """Return the folders of unfinished items.

    Raises ValueError for finished items that differ from the plan or from their files, for links,
    and for entries that no run of ours created.
    """
    files_below(partial / ITEMS)  # Refuses links at any depth.
    for name, done in finished.items():
        if not _as_planned(items.get(name), done):
            raise ValueError(
                f"{partial}: item {name} of its journal is not the plan's; delete {partial} to "
                "start again"
            )
        if lost := differences(files_below(partial / ITEMS / name), done.files):
            raise ValueError(
                f"{partial / ITEMS / name} was finished and has changed: {lost[0]}; delete "
                f"{partial} to start again"
            )
    left = [entry for entry in (partial / ITEMS).iterdir() if entry.name not in finished]
    for entry in left:
        ours = entry.name.partition(_UNFINISHED)[0] in items
        if not ours or not entry.is_dir():
            raise ValueError(f"{entry} is not ours; move it away, or give another DST")
    return left


def discard(partial: Path) -> None:
    """Delete the run's files, and the directory if it contains no others."""
    shutil.rmtree(partial / ITEMS)
    (partial / JOURNAL_FILE).unlink()
    if not any(partial.iterdir()):
        partial.rmdir()


def _has_begun(journal: Path) -> bool:
    if not journal.is_file():
        return False
    with journal.open("rb") as file:
        return file.readline().endswith(b"\n")


def _as_planned(item: Item | None, done: FinishedItem) -> bool:
    planned = [(p.path, p.shape, p.dtype.name) for p in item.parameters] if item else None
    return planned == [(p.path, p.shape, p.dtype) for p in done.parameters]
