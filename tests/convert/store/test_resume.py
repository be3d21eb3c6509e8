"""A conversion may be killed anywhere: the next run goes on, and the store is the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from converting import DRAFT, Capture, before_third_item, contents, copied, interrupted, refused
from killed_run import POINTS
from small_stores import arrays, leave_unfinished, parameters, source_directory, write_small
from sweeps import sweep

from convert.conversion import cli
from convert.store.files import BLOCK_BYTES, BLOCKS, fingerprint
from convert.store.reader import open_store, verify_store
from convert.store.writer import partial_directory

KILLED = -9
WHOLE_STORE = 5


def files_of(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file below a directory, with its inode and time of change."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(p.relative_to(directory)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


@pytest.mark.parametrize(
    "point", sweep([point for point in POINTS if point != "never"], ["writing"])
)
def test_a_killed_run_is_resumed_without_rewriting(tmp_path: Path, point: str) -> None:
    source_directory(tmp_path)
    destination = tmp_path / "made"
    script = Path(__file__).with_name("killed_run.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(script), point, str(destination)]
    assert subprocess.run(command, env=environment, check=False).returncode == KILLED
    partial = partial_directory(destination)
    journal = json.loads((partial / "unfinished.json").read_text())
    finished = {parameter["item"] for parameter in journal["parameters"]}
    # The third item is read while the second one is written.
    assert len(finished) in ((WHOLE_STORE,) if point == "before the rename" else (1, 2))
    before = {item: files_of(partial / "items" / item) for item in finished}

    progress = write_small(destination)

    assert len(progress) == WHOLE_STORE - len(finished)
    assert not partial.exists()
    assert before == {item: files_of(destination / "items" / item) for item in finished}
    store = open_store(destination)
    assert verify_store(store) == ([], [])
    assert all(store.read(p).tobytes() == v.tobytes() for p, v in arrays().items())


@pytest.mark.parametrize(
    "changed", [{"arch": "gfx942"}, {"options": {"int4_order": "awq"}}, {"source": ()}]
)
def test_another_source_or_option_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    source_directory(tmp_path)
    leave_unfinished(tmp_path / "made")
    before = files_of(tmp_path)
    message = f"begun with another {next(iter(changed))}.*; delete it"
    with pytest.raises(ValueError, match=message):
        write_small(tmp_path / "made", **changed)
    assert files_of(tmp_path) == before


def test_two_runs_do_not_write_the_same_store(tmp_path: Path) -> None:
    source_directory(tmp_path)
    made = tmp_path / "made"

    def write_again() -> NoReturn:
        write_small(made)
        raise AssertionError("it was locked")

    first, *others = parameters(arrays())
    with pytest.raises(ValueError, match="another process"):
        write_small(made, [replace(first, read=write_again), *others])
    write_small(made)


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
    monkeypatch.setattr("convert.store.files.BLOCKS", 2)
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


KEPT = {"kept.txt": b"not ours", "items/kept/file": b"nor this"}


def filled(directory: Path) -> Path:
    for name, content in KEPT.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


@pytest.mark.parametrize(
    ("journal", "message"), [(None, "no journal"), (b"", "damaged"), (b"{", "damaged")]
)
def test_content_without_a_sound_journal_is_left_alone(
    tmp_path: Path, capsys: Capture, journal: bytes | None, message: str
) -> None:
    partial = filled(tmp_path / "made.partial")
    if journal is not None:
        (partial / "unfinished.json").write_bytes(journal)
        (partial / ".lock").touch()
    before = contents(partial)
    assert message in refused(capsys, DRAFT, tmp_path / "made")
    assert contents(partial) == before


@pytest.mark.parametrize("target", ["full", "empty", "nowhere"])
def test_a_partial_directory_that_is_a_link_is_refused(
    tmp_path: Path, capsys: Capture, target: str
) -> None:
    filled(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    (tmp_path / "made.partial").symlink_to(tmp_path / target)
    assert "made.partial is not an unfinished conversion" in refused(
        capsys, DRAFT, tmp_path / "made"
    )
    assert contents(tmp_path / "full") == KEPT
    assert not any((tmp_path / "empty").iterdir()) and not (tmp_path / "nowhere").exists()


def test_a_journal_that_is_a_link_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes").write_text("kept")
    (tmp_path / "made.partial").mkdir()
    (tmp_path / "made.partial" / "unfinished.json").symlink_to(tmp_path / "notes")
    assert "no journal" in refused(capsys, DRAFT, tmp_path / "made")
    assert (tmp_path / "notes").read_text() == "kept"


@pytest.mark.parametrize("link", ["items", "items/*"])
def test_an_unfinished_run_is_not_resumed_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, link: str
) -> None:
    source, made = copied(tmp_path), tmp_path / "made"
    partial = interrupted(monkeypatch, source, made)
    found = sorted(partial.glob(link))[0]
    found.rename(tmp_path / "elsewhere")
    found.symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    assert "is a link" in refused(capsys, source, made, "--item-mib", "1")
    assert contents(tmp_path / "elsewhere") == before


def test_what_others_put_beside_the_items_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    source, made = copied(tmp_path), tmp_path / "made"
    filled(interrupted(monkeypatch, source, made))
    assert "items/kept is not ours" in refused(capsys, source, made, "--item-mib", "1")
    kept = contents(made.with_name("made.partial"))
    assert KEPT.items() <= kept.items()


def test_an_empty_partial_directory_is_used(tmp_path: Path) -> None:
    """A run may be killed before its journal begins, or while it is written."""
    (tmp_path / "made.partial").mkdir()
    (tmp_path / "made.partial" / ".unfinished.json.0f.partial").write_bytes(b"half")
    assert cli.main([str(DRAFT), str(tmp_path / "made")]) == 0
    assert not (tmp_path / "made.partial").exists()
