"""A file is replaced whole or not at all, and nothing beside it is written."""

from pathlib import Path

import pytest

from eagle3_jax.replace_file import replaced


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    path.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt), replaced(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.npz"]
    assert path.read_bytes() == b"before"
    with replaced(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.npz"]
    assert path.read_bytes() == b"after"


@pytest.mark.parametrize("name", ["state.partial", "state.npz.tmp", "state.tmp"])
def test_a_file_is_not_written_through_a_link_beside_it(tmp_path: Path, name: str) -> None:
    """Nor is a link of that name deleted."""
    (tmp_path / "notes").write_text("kept")
    (tmp_path / name).symlink_to(tmp_path / "notes")
    with replaced(tmp_path / "state.npz") as file:
        file.write(b"new")
    assert (tmp_path / "notes").read_text() == "kept" and (tmp_path / name).is_symlink()
    assert (tmp_path / "state.npz").read_bytes() == b"new"
