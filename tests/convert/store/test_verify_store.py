"""Damage anywhere in a store is found and named."""

import json
import shutil
from pathlib import Path

import pytest
from small_stores import ITEM_BYTES, ORIGIN, arrays, parameters, source_directory

from convert.store.verify import verify_store
from convert.store.writer import write_store


@pytest.fixture
def made(tmp_path: Path) -> Path:
    write_store(
        tmp_path / "made",
        parameters(arrays()),
        ORIGIN,
        side_files=source_directory(tmp_path),
        item_bytes=ITEM_BYTES,
    )
    return tmp_path / "made"


def data_file(item: Path) -> Path:
    """The largest file of an item."""
    return max(item.rglob("d/*"), key=lambda path: path.stat().st_size)


def test_a_sound_store_has_no_damage(made: Path) -> None:
    progress: list[int] = []
    result = verify_store(made, progress.append)
    assert result.damage == ()
    assert (result.parameters, result.nbytes) == (len(arrays()), sum(progress))


def test_one_flipped_bit_is_found(made: Path) -> None:
    file = data_file(made / "items" / "layers.1.mlp.experts.up_proj.values")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (line,) = verify_store(made).damage
    assert line == "layers.1.mlp.experts.up_proj.values: its checksum differs"


def test_a_truncated_file_and_a_missing_item_are_found(made: Path) -> None:
    file = data_file(made / "items" / "layers.0.mlp.experts.up_proj.scale")
    file.write_bytes(file.read_bytes()[:100])
    shutil.rmtree(made / "items" / "layers.1.mlp.experts.up_proj.values")
    first, second = verify_store(made).damage
    assert first.startswith("layers.0.mlp.experts.up_proj.scale: cannot be read")
    assert second.startswith("layers.1.mlp.experts.up_proj.values: cannot be read")


def test_a_parameter_the_manifest_does_not_list_is_found(made: Path) -> None:
    file = made / "manifest.json"
    fields = json.loads(file.read_text())
    dropped = fields["parameters"].pop(0)
    fields["totals"]["parameters"] -= 1
    fields["totals"]["bytes"] -= dropped["nbytes"]
    file.write_text(json.dumps(fields))
    (line,) = verify_store(made).damaged_files
    assert dropped["path"] in line and "does not list" in line
