"""A store gives back what was written, bit for bit, and Orbax alone can read it."""

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from small_stores import ORIGIN, arrays, parameters, source_directory, write_small

from convert.store.parameters import Parameter, checksum, group
from convert.store.reader import Store, open_store, verify_store
from convert.store.writer import write_store
from eagle3_jax.mesh import make_mesh

DEVICES = 8
NAMES = st.sampled_from(["a", "b", "c", "0", "1", "model"])
TREES = st.recursive(
    st.integers(1, 50), lambda inner: st.dictionaries(NAMES, inner, min_size=1), max_leaves=30
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    parent = tmp_path_factory.mktemp("store")
    source_directory(parent)
    write_small(parent / "made")
    return open_store(parent / "made")


def test_every_parameter_comes_back_bit_for_bit(store: Store) -> None:
    expected = arrays()
    assert set(store.parameters) == set(expected)
    for path, value in expected.items():
        found = store.read(path)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()


def test_orbax_alone_can_read_every_item(store: Store) -> None:
    expected = arrays()
    for item in (store.directory / "items").iterdir():
        tree = ocp.PyTreeCheckpointer().restore(item)
        for path, value in tree.items():
            assert np.asarray(value).tobytes() == expected[path].tobytes()


def test_the_manifest_is_what_was_written(store: Store) -> None:
    assert store.manifest.origin == ORIGIN
    assert store.manifest.totals["bytes"] == sum(value.nbytes for value in arrays().values())
    assert all(store.parameters[p].checksum == checksum(v) for p, v in arrays().items())
    names = {path.name for path in store.directory.iterdir()}
    assert names == {"items", "manifest.json", "config.json", "tokenizer_config.json"}


def test_a_parameter_the_manifest_does_not_list_is_found(tmp_path: Path) -> None:
    source_directory(tmp_path)
    write_small(tmp_path / "made")
    file = tmp_path / "made" / "manifest.json"
    fields = json.loads(file.read_text())
    dropped = fields["parameters"].pop(0)
    fields["totals"]["parameters"] -= 1
    fields["totals"]["bytes"] -= dropped["nbytes"]
    file.write_text(json.dumps(fields))
    _, (line,) = verify_store(open_store(tmp_path / "made"))
    assert dropped["path"] in line and "does not list" in line


def leaves(tree: object, *names: str) -> list[Parameter]:
    if isinstance(tree, dict):
        return [p for name, inner in tree.items() for p in leaves(inner, *names, name)]
    assert isinstance(tree, int)
    path = ".".join(names) or "alone"
    return [Parameter(path, (tree,), np.dtype(np.uint8), lambda: np.zeros(tree, np.uint8))]


@given(TREES, st.integers(1, 120))
def test_items_hold_every_parameter_once_and_stay_small(tree: object, limit: int) -> None:
    given_parameters = leaves(tree)
    items = group(given_parameters, limit)
    held = [parameter.path for item in items for parameter in item.parameters]
    assert sorted(held) == sorted(parameter.path for parameter in given_parameters)
    assert len({item.name for item in items}) == len(items)
    assert all(item.nbytes <= limit or len(item.parameters) == 1 for item in items)


def test_a_path_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match=r"norm\.weight occurs twice"):
        group(2 * parameters({"norm.weight": np.zeros(1, np.float32)}))


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
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


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("path", ["mlp.kernel", "mlp.experts.values"])
def test_eight_devices_read_every_byte_about_once(large_store: Store, path: str, axis: int) -> None:
    sharding = NamedSharding(make_mesh(DEVICES), PartitionSpec(*(None,) * axis, "tensor"))
    before = bytes_read()
    array = large_store.read_sharded(path, sharding)
    read = (bytes_read() - before) / array.nbytes
    assert array.sharding == sharding
    assert {part.device for part in array.addressable_shards} == set(jax.devices()[:DEVICES])
    assert np.asarray(array).tobytes() == large_store.read(path).tobytes()
    assert 1 <= read < 1.5
