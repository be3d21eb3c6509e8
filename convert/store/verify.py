"""Verify a store: read everything and compare it with the manifest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from convert.store.array_bytes import checksum
from convert.store.files import differences
from convert.store.orbax_item import paths_of
from convert.store.partial import ITEMS
from convert.store.reader import Store, item_files, open_store
from convert.store.source import file_checksum


@dataclass(frozen=True)
class Verification:
    """The result of reading a store.

    `damage` has a line for each damaged parameter; `damaged_files` has one for each file that is
    missing, changed or unexpected.
    """

    parameters: int
    nbytes: int
    damage: tuple[str, ...]
    damaged_files: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """True if the store matches its manifest."""
        return not self.damage and not self.damaged_files


def verify_store(
    directory: str | Path, on_bytes: Callable[[int], None] = lambda _: None
) -> Verification:
    """Compare files, shapes, bytes and checksums with the manifest.

    Raises FileNotFoundError and ValueError as `open_store` does for manifests and links.
    """
    store = open_store(directory, check_files=False)
    wrong_files = differences(item_files(store.directory), store.manifest.contents.files)
    damaged_files = (*_wrong_side_files(store), *wrong_files, *_wrong_items(store))
    damage = []
    for parameter in store.parameters.values():
        try:
            if checksum(store.read(parameter.path)) != parameter.checksum:
                damage.append(f"{parameter.path}: its checksum differs")
        except ValueError as error:
            damage.append(str(error))
        on_bytes(parameter.nbytes)
    totals = store.manifest.totals
    return Verification(totals["parameters"], totals["bytes"], tuple(damage), damaged_files)


def _wrong_side_files(store: Store) -> Iterator[str]:
    for name, expected in store.manifest.contents.side_files.items():
        file = store.directory / name
        if not file.is_file():
            yield f"{name}: missing"
        elif file_checksum(file) != expected:
            yield f"{name}: its checksum differs"


def _wrong_items(store: Store) -> Iterator[str]:
    """Yield an error for each item with parameters that the manifest does not list."""
    listed: dict[str, set[str]] = {}
    for parameter in store.parameters.values():
        listed.setdefault(parameter.item, set()).add(parameter.path)
    folder = store.directory.absolute() / ITEMS
    for item in sorted({path.name for path in folder.glob("*")} | set(listed)):
        try:
            found = paths_of(folder / item)
        except Exception:  # Checks of files and parameters report the damage.
            continue
        if extra := found - listed.get(item, set()):
            yield f"{item}: holds {sorted(extra)}, which the manifest does not list"
