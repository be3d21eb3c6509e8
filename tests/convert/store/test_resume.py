"""A conversion may be killed anywhere: the next run goes on, and the store is the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from killed_run import POINTS
from small_stores import ITEM_BYTES, ORIGIN, arrays, leave_unfinished, parameters, source_directory
from sweeps import sweep

from convert.store.journal import Journal
from convert.store.parameter import Parameter
from convert.store.partial import partial_directory
from convert.store.reader import open_store
from convert.store.verify import verify_store
from convert.store.writer import write_store

KILLED = -9
WHOLE_STORE = 7


def resume(destination: Path, values: list[Parameter], **origin: object) -> list[int]:
    """Writes in this process; returns the progress."""
    progress: list[int] = []
    write_store(
        destination,
        values,
        replace(ORIGIN, **origin),
        side_files=destination.parent / "source",
        item_bytes=ITEM_BYTES,
        on_bytes=progress.append,
    )
    return progress


def files_of(directory: Path) -> dict[str, tuple[int, int]]:
    """Every file below a directory, with its inode and time of change."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(p.relative_to(directory)): (p.stat().st_ino, p.stat().st_mtime_ns) for p in found}


@pytest.mark.parametrize(
    "point", sweep([point for point in POINTS if point != "never"], ["writing"])
)
def test_a_killed_run_is_resumed_without_rewriting(tmp_path: Path, point: str) -> None:
    side_files, destination = source_directory(tmp_path), tmp_path / "made"
    script = Path(__file__).with_name("killed_run.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(script), point, str(destination), str(side_files)]
    assert subprocess.run(command, env=environment, check=False).returncode == KILLED
    partial = partial_directory(destination)
    lines = (partial / "journal.jsonl").read_text().splitlines()[1:]
    finished = [json.loads(line)["item"] for line in lines]
    # The third item is read while the second one is written.
    assert len(finished) in ((WHOLE_STORE,) if point == "before the rename" else (1, 2))
    before = {item: files_of(partial / "items" / item) for item in finished}

    progress = resume(destination, parameters(arrays()))

    assert len(progress) == WHOLE_STORE - len(finished)
    assert not partial.exists()
    assert before == {item: files_of(destination / "items" / item) for item in finished}
    assert verify_store(destination).damage == ()
    store = open_store(destination)
    assert all(store.read(p).tobytes() == v.tobytes() for p, v in arrays().items())


def test_a_torn_last_line_of_the_journal_is_written_again(tmp_path: Path) -> None:
    source_directory(tmp_path)
    destination = tmp_path / "made"
    journal = leave_unfinished(destination) / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-20])
    resume(destination, parameters(arrays()))
    assert verify_store(destination).damage == ()


@pytest.mark.parametrize(
    "changed", [{"arch": "gfx942"}, {"options": {"int4_order": "awq"}}, {"source": ()}]
)
def test_another_source_or_option_is_refused(tmp_path: Path, changed: dict[str, object]) -> None:
    source_directory(tmp_path)
    leave_unfinished(tmp_path / "made")
    before = files_of(tmp_path)
    message = f"begun with another {next(iter(changed))}.*; delete it"
    with pytest.raises(ValueError, match=message):
        resume(tmp_path / "made", parameters(arrays()), **changed)
    assert files_of(tmp_path) == before


def test_two_runs_do_not_write_the_same_store(tmp_path: Path) -> None:
    with Journal.open(tmp_path, {}):
        with pytest.raises(ValueError, match="another process"), Journal.open(tmp_path, {}):
            pass
    with Journal.open(tmp_path, {}):
        pass
