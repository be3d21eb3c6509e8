"""Damage anywhere in a store is found and named."""

import json
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


def test_a_sound_store_has_no_damage(made: Path) -> None:
    progress: list[int] = []
    result = verify_store(made, progress.append)
    assert result.damage == ()
    assert (result.parameters, result.nbytes) == (len(arrays()), sum(progress))


def test_a_parameter_the_manifest_does_not_list_is_found(made: Path) -> None:
    file = made / "manifest.json"
    fields = json.loads(file.read_text())
    dropped = fields["parameters"].pop(0)
    fields["totals"]["parameters"] -= 1
    fields["totals"]["bytes"] -= dropped["nbytes"]
    file.write_text(json.dumps(fields))
    (line,) = verify_store(made).damaged_files
    assert dropped["path"] in line and "does not list" in line
