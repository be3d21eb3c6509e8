"""Compare a converted checkpoint with its source, bit for bit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

from convert.conversion.conversion import Conversion, open_conversion
from convert.published.weights import Int4OrderChoice
from convert.store.arch import for_arch
from convert.store.array_bytes import checksum
from convert.store.parameter import Parameter
from convert.store.reader import Store
from convert.store.records import StoredParameter
from convert.store.source import file_checksum, side_files


def differences_from(
    source: str | Path, store: Store, on_bytes: Callable[[int], None] = lambda _: None
) -> Iterator[str]:
    """Yield a line for each parameter and side file that differs from a new conversion of `source`.

    The whole source is read again with the store's own options, and its SHA-256 sums are compared
    with the manifest. `verify_store` compares the store's arrays with the same manifest. Raises as
    `open_conversion` does.
    """
    conversion = _same_conversion(source, store)
    yield from _other_origin(conversion, store)
    given = {p.path: p for p in for_arch(tuple(conversion.parameters), conversion.origin.arch)}
    for path in store.parameters.keys() - given.keys():
        yield f"{path}: not in {source}"
    for path, parameter in given.items():
        stored = store.parameters.get(path)
        if stored is None:
            yield f"{path}: missing"
        elif wrong := _difference(parameter, stored):
            yield f"{path}: {wrong}"
        on_bytes(parameter.nbytes)


def _same_conversion(source: str | Path, store: Store) -> Conversion:
    origin = store.manifest.origin
    orders: dict[object, Int4OrderChoice] = {name: name for name in get_args(Int4OrderChoice)}
    return open_conversion(
        source, int4_order=orders.get(origin.options.get("int4_order"), "auto"), arch=origin.arch
    )


def _other_origin(conversion: Conversion, store: Store) -> Iterator[str]:
    """Compare formats, tensor names and small files in the manifest with those of the source."""
    ours, stored = conversion.origin, store.manifest.origin
    if (ours.formats, ours.tensors) != (stored.formats, stored.tensors):
        yield "manifest.json: formats or tensors are not those of the source"
    for file in side_files(conversion.planned.published.directory):
        if store.manifest.contents.side_files.get(file.name) != file_checksum(file):
            yield f"{file.name}: not the source's"


def _difference(parameter: Parameter, stored: StoredParameter) -> str | None:
    expected = (parameter.shape, parameter.dtype.name)
    if expected != (stored.shape, stored.dtype):
        return f"expected {expected}, found {(stored.shape, stored.dtype)}"
    return None if checksum(parameter.read()) == stored.checksum else "other values"
