"""Checkpoints of the real size without their weights: headers, and files that are holes.

As a command: `python tests/convert/sparse_checkpoint.py kimi-k2.5 DIR`, and then
`eagle3-convert DIR --dry-run` plans the released 554 GiB.
"""

import itertools
import json
import os
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).parents[1] / "oracles" / "published"
Listed = tuple[str, str, list[int], int]
"""Name, dtype, shape and bytes of one tensor."""


def write_sparse(
    name: str, directory: Path, *, shards: int = 64, layers: int | None = None
) -> list[Listed]:
    """Writes the released checkpoint `name` as its manifest lists it; returns its tensors.

    `layers` is how many of a target's layers there are, all by default. The data of every file
    is one hole, so that 554 GiB take a few MiB of disk.
    """
    manifest, config = (
        json.loads((PUBLISHED / f"{name}.{kind}.json").read_text(encoding="utf-8"))
        for kind in ("manifest", "config")
    )
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
        write_hole(directory / file, members)
        weight_map |= {name: file for name, *_ in members}
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return tensors


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


def write_hole(file: Path, tensors: list[Listed]) -> None:
    """Writes a header, and behind it a hole in place of the data."""
    os.truncate(file, write_header(file, tensors))


def write_header(file: Path, tensors: list[Listed]) -> int:
    """Begins a file with these tensors; returns how many bytes it will have."""
    header: dict[str, Any] = {}
    end = 0
    for name, dtype, shape, nbytes in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    encoded = json.dumps(header, separators=(",", ":")).encode()
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded)
    return 8 + len(encoded) + end


if __name__ == "__main__":
    written = write_sparse(sys.argv[1], Path(sys.argv[2]))
    print(f"{len(written)} tensors, {sum(nbytes for *_, nbytes in written)} bytes")
