"""What a conversion has not made itself it does not delete, and does not write through links."""

from pathlib import Path

import pytest
from converting import DRAFT, Capture, contents, copied, interrupted, refused

from convert.conversion import cli

KEPT = {"kept.txt": b"not ours", "items/kept/file": b"nor this"}


def filled(directory: Path) -> Path:
    for name, content in KEPT.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


@pytest.mark.parametrize("journal", [None, b"", b"half a line"])
def test_content_without_a_sound_journal_is_left_alone(
    tmp_path: Path, capsys: Capture, journal: bytes | None
) -> None:
    partial = filled(tmp_path / "made.partial")
    if journal is not None:
        (partial / "journal.jsonl").write_bytes(journal)
    before = contents(partial)
    assert "no journal" in refused(capsys, DRAFT, tmp_path / "made")
    assert contents(partial) == before


@pytest.mark.parametrize("target", ["full", "empty", "nowhere"])
def test_a_partial_directory_that_is_a_link_is_refused(
    tmp_path: Path, capsys: Capture, target: str
) -> None:
    filled(tmp_path / "full")
    (tmp_path / "empty").mkdir()
    (tmp_path / "made.partial").symlink_to(tmp_path / target)
    assert "made.partial is no directory of ours" in refused(capsys, DRAFT, tmp_path / "made")
    assert contents(tmp_path / "full") == KEPT
    assert not any((tmp_path / "empty").iterdir()) and not (tmp_path / "nowhere").exists()


def test_a_journal_that_is_a_link_is_refused(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes").write_text("kept")
    (tmp_path / "made.partial").mkdir()
    (tmp_path / "made.partial" / "journal.jsonl").symlink_to(tmp_path / "notes")
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
    """A run may be killed before its journal begins."""
    (tmp_path / "made.partial").mkdir()
    assert cli.main([str(DRAFT), str(tmp_path / "made")]) == 0
    assert not (tmp_path / "made.partial").exists()
