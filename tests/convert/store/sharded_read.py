"""Run as a process on eight devices: reads a parameter sharded and prints what that read."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import tensorstore as ts
from jax.sharding import NamedSharding, PartitionSpec

from convert.store import open_store


def bytes_read() -> int:
    """Bytes that TensorStore has read from files so far."""
    metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(value["value"] for metric in metrics for value in metric["values"])


if __name__ == "__main__":
    store = open_store(Path(sys.argv[1]))
    mesh = jax.make_mesh((8,), ("tensor",), axis_types=(jax.sharding.AxisType.Auto,))
    results = []
    for path, axis in json.loads(sys.argv[2]):
        spec = PartitionSpec(*(None,) * axis, "tensor")
        before = bytes_read()
        array = store.read(path, NamedSharding(mesh, spec))
        share = (bytes_read() - before) / array.nbytes
        devices = {shard.device for shard in array.addressable_shards}
        equal = np.array_equal(np.asarray(array), store.read(path))
        as_asked = array.sharding == NamedSharding(mesh, spec)
        results.append([share, len(devices), as_asked, equal])
    print(json.dumps(results))
