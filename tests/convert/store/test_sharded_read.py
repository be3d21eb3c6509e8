"""Loading onto a mesh reads every byte about once, not once a device."""

import jax
import numpy as np
import pytest
import tensorstore as ts
from jax.sharding import NamedSharding, PartitionSpec
from small_stores import ORIGIN, parameters, source_directory

from convert.store.reader import Store, open_store
from convert.store.writer import write_store
from eagle3_jax.mesh import make_mesh

DEVICES = 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A matrix and a stack of several chunks each."""
    directory, noise = tmp_path_factory.mktemp("store"), np.random.default_rng(0)
    values = {
        "mlp.kernel": noise.integers(0, 256, (8192, 4096), np.uint8),
        "mlp.experts.values": noise.integers(0, 256, (16, 512, 512), np.uint8),
    }
    side_files = source_directory(directory)
    write_store(directory / "made", parameters(values), ORIGIN, side_files=side_files)
    return open_store(directory / "made")


def bytes_read() -> int:
    """Bytes that TensorStore has read from files so far."""
    metrics = ts.experimental_collect_matching_metrics("/tensorstore/kvstore/file/bytes_read")
    return sum(value["value"] for metric in metrics for value in metric["values"])


@pytest.mark.parametrize(
    ("path", "axis"),
    [("mlp.kernel", 0), ("mlp.kernel", 1), ("mlp.experts.values", 0), ("mlp.experts.values", 1)],
)
def test_eight_devices_read_little_more_than_there_is(store: Store, path: str, axis: int) -> None:
    sharding = NamedSharding(make_mesh(DEVICES), PartitionSpec(*(None,) * axis, "tensor"))
    before = bytes_read()
    array = store.read_sharded(path, sharding)
    share = (bytes_read() - before) / array.nbytes
    assert array.sharding == sharding
    assert {part.device for part in array.addressable_shards} == set(jax.devices()[:DEVICES])
    assert np.asarray(array).tobytes() == store.read(path).tobytes()
    assert 1 <= share < 1.5
