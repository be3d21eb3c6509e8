"""Checkpoints of the real size without their weights: headers, and files that are holes.

As a command: `python tests/convert/sparse_checkpoint.py kimi-k2.5 DIR`, and then
`eagle3-convert DIR --dry-run` plans the released 554 GiB.
"""

import itertools
import json
import os
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

PUBLISHED = Path(__file__).parents[1] / "oracles" / "published"
VARIANTS: dict[str, Any] = json.loads((PUBLISHED / "variants.json").read_text(encoding="utf-8"))
"""Checkpoints that differ from a published one in a few fields, and those that are refused."""
Listed = tuple[str, str, list[int], int]
"""Name, dtype, shape and bytes of one tensor."""


def write_sparse(
    name: str, directory: Path, *, shards: int = 64, layers: int | None = None
) -> list[Listed]:
    """Writes the released checkpoint `name` as its manifest lists it; returns its tensors.

    `layers` is how many of a target's layers there are, all by default. The data of every file
    is one hole, so that 554 GiB take a few MiB of disk.
    """
    manifest, config = read_published(name, "manifest"), read_published(name, "config")
    if layers is not None:
        config.get("text_config", config)["num_hidden_layers"] = layers
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = list(listed_tensors(manifest, {} if layers is None else {"L": layers}))
    share = -(-len(tensors) // shards)
    weight_map: dict[str, str] = {}
    for shard, start in enumerate(range(0, len(tensors), share)):
        members = tensors[start : start + share]
        file = f"model-{shard + 1:05d}-of-{shards:06d}.safetensors"
        os.truncate(directory / file, write_header(directory / file, members))
        weight_map |= {name: file for name, *_ in members}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return tensors


def read_published(name: str, kind: Literal["config", "manifest"]) -> Any:
    """A published file, or what variants.json makes of that of another checkpoint."""
    if (variant := VARIANTS.get(name)) is None:
        return json.loads((PUBLISHED / f"{name}.{kind}.json").read_text(encoding="utf-8"))
    base = read_published(variant["base"], kind) if variant["base"] else {}
    if kind == "config":
        return merged(base, variant["config"])
    tensors = [one for entry in base["tensors"] for one in _stored(entry, variant)]
    return base | {"tensors": tensors + variant.get("added", [])}


def merged(base: Any, changes: Any) -> Any:
    """A JSON value with the changes of a merge patch (RFC 7386): null deletes a field."""
    if not isinstance(changes, dict):
        return changes
    kept = base if isinstance(base, dict) else {}
    found = {name: merged(kept.get(name), value) for name, value in changes.items()}
    return {name: value for name, value in (kept | found).items() if value is not None}


def _stored(entry: dict[str, Any], variant: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A tensor of the base as the variant stores it: its FP8 linear layers have scales."""
    name, shape = entry["name"], entry["shape"]
    if variant.get("fp8_channel", "no layer") not in name or len(shape) != 2:
        yield entry
        return
    scale = {"name": f"{name}_scale", "dtype": "F32", "shape": shape[:1]}
    yield entry | {"dtype": "F8_E4M3", "bytes_each": shape[0] * shape[1]}
    yield entry | scale | {"bytes_each": 4 * shape[0]}


def listed_tensors(manifest: dict[str, Any], most: Mapping[str, int]) -> Iterator[Listed]:
    """All of them. most: of an index, L of layers or E of experts, how many there are."""
    for entry in manifest["tensors"]:
        ranges = dict(entry["index_ranges"])
        for index in most.keys() & ranges.keys():
            ranges[index] = (ranges[index][0], min(ranges[index][1], most[index] - 1))
        spans = [range(first, last + 1) for first, last in ranges.values()]
        for values in itertools.product(*spans):
            name = entry["name"].format(**dict(zip(ranges, values, strict=True)))
            yield name, entry["dtype"], entry["shape"], entry["bytes_each"]


def header_of(tensors: Iterable[Listed]) -> tuple[dict[str, Any], int]:
    """A file's header, and the bytes of data behind it."""
    header, end = {}, 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    return header, end


def write_header(file: Path, tensors: Iterable[Listed]) -> int:
    """Begins a file with these tensors; returns how many bytes it will have."""
    header, size = header_of(tensors)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded)
    return 8 + len(encoded) + size


if __name__ == "__main__":
    written = write_sparse(sys.argv[1], Path(sys.argv[2]))
    print(f"{len(written)} tensors, {sum(nbytes for *_, nbytes in written)} bytes")
