"""A store is of one checkpoint: weights that change under a conversion are noticed."""

import os
from pathlib import Path

import pytest
from converting import Capture, before_third_item, contents, copied, interrupted, refused

from convert.conversion import cli
from convert.store.source import BLOCK_BYTES, BLOCKS, fingerprint

FILE = "model.safetensors"


def flip(file: Path, offset: int) -> None:
    """Changes one byte and leaves size and time as they are."""
    found = file.stat()
    with file.open("r+b") as opened:
        opened.seek(offset, os.SEEK_END if offset < 0 else os.SEEK_SET)
        (byte,) = opened.read(1)
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 1]))
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def touch(file: Path) -> None:
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))


@pytest.mark.parametrize(
    "change", [lambda file: flip(file, -1), touch], ids=["another byte", "another time"]
)
def test_a_resumed_conversion_does_not_mix_two_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, change: object
) -> None:
    source, made = copied(tmp_path), tmp_path / "made"
    partial = interrupted(monkeypatch, source, made)
    before = contents(partial)
    change(source / FILE)  # type: ignore[operator]
    said = refused(capsys, source, made, "--item-mib", "1")
    assert "begun with another source (model.safetensors changed" in said and "delete it" in said
    assert contents(partial) == before and not made.exists()


def test_weights_that_change_while_they_are_converted_make_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source, made = copied(tmp_path), tmp_path / "made"
    before_third_item(monkeypatch, lambda: touch(source / FILE))
    said = refused(capsys, source, made, "--item-mib", "1")
    assert "changed while it was converted (model.safetensors)" in said and not made.exists()


def test_samples_are_spread_over_the_whole_of_a_large_file(tmp_path: Path) -> None:
    """Its first and last byte, and any stretch as long as a block's share of it."""
    file, share = tmp_path / FILE, 4 * BLOCK_BYTES
    end = 10 + share * BLOCKS
    file.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(share * BLOCKS))
    seen = fingerprint(tmp_path)
    stretches = [range(start, start + share, BLOCK_BYTES) for start in (20, end // 3, end - share)]
    for places in ([9], [10], [end - 1], *stretches):
        for place in places:
            flip(file, place)
        assert fingerprint(tmp_path) != seen, places
        for place in places:
            flip(file, place)
    assert fingerprint(tmp_path) == seen


def test_what_samples_miss_is_found_by_verify_with_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("convert.store.source.BLOCKS", 2)
    source, made = copied(tmp_path), tmp_path / "made"
    assert cli.main([str(source), str(made)]) == 0
    assert cli.main(["--verify", str(source), str(made)]) == 0
    assert "bit for bit" in capsys.readouterr().out
    before = fingerprint(source)
    flip(source / FILE, (source / FILE).stat().st_size // 2)
    assert fingerprint(source) == before
    assert cli.main(["--verify", str(made)]) == 0
    said = refused(capsys, source, made, "--verify", status=1)
    assert "1 differences; the first is " in said and "other values" in said


def test_verify_with_the_source_compares_configuration_and_tokenizer(
    tmp_path: Path, capsys: Capture
) -> None:
    source, made = copied(tmp_path), tmp_path / "made"
    assert cli.main([str(source), str(made)]) == 0
    config = source / "config.json"
    config.write_text(config.read_text().replace("}", " }", 1))
    said = refused(capsys, "--verify", source, made, status=1)
    assert "config.json: not the source's" in said
