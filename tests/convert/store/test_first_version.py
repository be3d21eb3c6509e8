"""Files of version 0.1.0 (commit ffc9a998) are read, refused or not found, never misread."""

from pathlib import Path

import pytest
from small_stores import arrays, source_directory, write_small

from convert.store.reader import open_store, verify_store
from convert.store.writer import partial_directory
from eagle3_jax.engine.kv.page_files import DamagedPageError, read_page

STORE = Path(__file__).parent / "written_by_0.1.0"
PAGE = bytes.fromhex(
    f"45334b5650470001{'70' * 32}{'6b' * 32}08000000000000009f68aa880001020304050607"
)
"""A page of the bytes 0 to 7 with the fingerprint `p` and the key `k`, each 32 times."""


def test_a_store_is_read_and_verified_bit_for_bit() -> None:
    store = open_store(STORE)
    assert store.read("norm.weight").tobytes() == arrays()["norm.weight"].tobytes()
    assert verify_store(store) == ([], [])


def test_an_unfinished_conversion_is_refused_and_left_alone(tmp_path: Path) -> None:
    source_directory(tmp_path)
    begun = partial_directory(tmp_path / "made")
    begun.mkdir()
    (begun / "journal.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"no journal \(unfinished.json\).* move it away"):
        write_small(tmp_path / "made")
    assert [path.name for path in begun.iterdir()] == ["journal.jsonl"]


def test_a_page_is_found_only_under_the_fingerprint_it_was_written_with(tmp_path: Path) -> None:
    path = tmp_path / "a.page"
    path.write_bytes(PAGE)
    assert read_page(path, b"p" * 32, b"k" * 32, 8).tolist() == list(range(8))
    for fingerprint, key in ((b"n" * 32, b"k" * 32), (b"p" * 32, b"n" * 32)):
        with pytest.raises(DamagedPageError):
            read_page(path, fingerprint, key, 8)
