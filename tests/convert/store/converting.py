"""Conversions of a small golden checkpoint, interrupted and tampered with."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle_files import ORACLES

from convert.conversion import cli
from convert.store import writer

DRAFT = ORACLES / "draft_mha_bf16"
Capture = pytest.CaptureFixture[str]


def copied(parent: Path, golden: Path = DRAFT) -> Path:
    """A source that a test may change."""
    source = parent / "source"
    shutil.copytree(golden, source)
    source.chmod(0o755)
    for file in source.iterdir():
        file.chmod(0o644)
    return source


def refused(capsys: Capture, *arguments: object, status: int = 2) -> str:
    """Return the only line that the command writes when it ends with an error."""
    capsys.readouterr()
    assert cli.main([str(argument) for argument in arguments]) == status
    said = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert len(said) == 1 and said[0].startswith("eagle3-convert: error: "), said
    assert len(said[0]) < 1000
    return said[0]


def before_third_item(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Items become small, and `act` is called before the third one is written."""
    calls, save = iter([None, None, act]), writer.save_item

    def save_item(*arguments: Any) -> None:
        if doing := next(calls, None):
            doing()
        save(*arguments)

    monkeypatch.setattr(cli, "MIB", 2**14)
    monkeypatch.setattr(writer, "save_item", save_item)


def interrupted(monkeypatch: pytest.MonkeyPatch, source: Path, destination: Path) -> Path:
    """DST.partial, with two items finished."""

    def stop() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        before_third_item(patched, stop)
        with pytest.raises(KeyboardInterrupt):
            cli.main([str(source), str(destination), "--item-mib", "1"])
    monkeypatch.setattr(cli, "MIB", 2**14)
    return destination.with_name(destination.name + ".partial")


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
