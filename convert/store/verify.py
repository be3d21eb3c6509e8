"""Verify a store: everything is read back and compared with the manifest."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from convert.store.checksum import checksum
from convert.store.manifest import StoredParameter
from convert.store.orbax_item import paths_of
from convert.store.reader import Store, open_store
from convert.store.writer import ITEMS


@dataclass(frozen=True)
class Verification:
    """What was read back; `damage` has one line for each parameter or item that is not sound."""

    parameters: int
    nbytes: int
    damage: tuple[str, ...]


def verify_store(
    directory: str | Path, on_bytes: Callable[[int], None] = lambda _: None
) -> Verification:
    """Compares count, shapes, bytes and checksums with the manifest.

    Raises FileNotFoundError and ValueError as `open_store` does.
    """
    store = open_store(directory)
    damage = _wrong_items(store)
    for parameter in store.parameters.values():
        wrong = _wrong_parameter(store, parameter)
        damage += [f"{parameter.path}: {wrong}"] if wrong else []
        on_bytes(parameter.nbytes)
    totals = store.manifest.totals
    return Verification(totals["parameters"], totals["bytes"], tuple(damage))


def _wrong_items(store: Store) -> list[str]:
    """Items that hold other parameters than the manifest says, or that it does not name."""
    listed: dict[str, set[str]] = {}
    for parameter in store.parameters.values():
        listed.setdefault(parameter.item, set()).add(parameter.path)
    folder = store.directory.absolute() / ITEMS
    wrong = []
    for item in sorted({path.name for path in folder.glob("*")} | set(listed)):
        try:
            found = paths_of(folder / item)
        except (FileNotFoundError, ValueError):
            continue
        if extra := found - listed.get(item, set()):
            wrong.append(f"{item}: holds {sorted(extra)}, which the manifest does not list")
    return wrong


def _wrong_parameter(store: Store, parameter: StoredParameter) -> str | None:
    try:
        array = store.read(parameter.path)
    except Exception as error:  # Orbax and TensorStore promise no type for damaged files.
        return f"cannot be read: {str(error).splitlines()[0]}"
    found = (array.shape, array.dtype.name, array.nbytes)
    expected = (parameter.shape, parameter.dtype, parameter.nbytes)
    if found != expected:
        return f"expected {expected}, found {found}"
    if checksum(array) != parameter.checksum:
        return "its checksum differs"
    return None
