"""A store gives back, bit for bit, what was written; and its manifest describes it."""

import json
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from small_stores import ITEM_BYTES, ORIGIN, arrays, parameters, source_directory

from convert.store.array_bytes import checksum
from convert.store.groups import group
from convert.store.manifest import Manifest, read_manifest
from convert.store.parameter import Parameter
from convert.store.reader import Store, open_store
from convert.store.writer import write_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    parent = tmp_path_factory.mktemp("store")
    write(parent / "made", source_directory(parent))
    return open_store(parent / "made")


def write(destination: Path, side_files: Path) -> Manifest:
    return write_store(
        destination, parameters(arrays()), ORIGIN, side_files=side_files, item_bytes=ITEM_BYTES
    )


def test_every_parameter_comes_back_bit_for_bit(store: Store) -> None:
    expected = arrays()
    assert set(store.parameters) == set(expected)
    for path, value in expected.items():
        found = store.read(path)
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()


def test_sharded_parameters_equal_whole_ones(store: Store) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("tensor",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tensor"))
    for path in ("embed_tokens.embedding", "layers.1.mlp.experts.up_proj.values"):
        found = store.read_sharded(path, sharding)
        assert isinstance(found, jax.Array) and found.sharding == sharding
        assert np.asarray(found).tobytes() == arrays()[path].tobytes()


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


def test_configuration_and_tokenizer_lie_beside_the_items(store: Store) -> None:
    names = {path.name for path in store.directory.iterdir()}
    assert names == {"items", "manifest.json", "config.json", "tokenizer_config.json"}


def test_items_follow_modules_and_stay_small() -> None:
    items = group(parameters(arrays()), ITEM_BYTES)
    assert [item.name for item in items] == [
        "model-root",
        "layers.0",
        "layers.0.mlp.experts.up_proj.scale",
        "layers.0.mlp.experts.up_proj.values",
        "layers.1",
        "layers.1.mlp.experts.up_proj.scale",
        "layers.1.mlp.experts.up_proj.values",
    ]
    assert all(item.nbytes <= ITEM_BYTES or len(item.parameters) == 1 for item in items)


def test_a_path_that_occurs_twice_is_refused() -> None:
    twice = Parameter("norm.weight", (1,), np.dtype(np.float32), lambda: np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"norm\.weight occurs twice"):
        group([twice, twice])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 1}, "must say"),
        ({"totals": {}}, "lists"),
        ({"parameters": [{}]}, "damaged"),
        ({"tensors": None}, "damaged"),
    ],
)
def test_a_damaged_manifest_is_refused(
    store: Store, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    fields = json.loads((store.directory / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**fields, **change}))
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path)
