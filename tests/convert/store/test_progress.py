"""Progress where no terminal is: a line every tenth, with what is left."""

import io
import re

import pytest
from rich.console import Console

from convert.conversion import progress
from convert.conversion.progress import GIB, ByteProgress


def test_a_hundred_steps_are_ten_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    out = io.StringIO()
    with ByteProgress(Console(file=out), "converting", 100 * GIB) as shown:
        for _ in range(100):
            shown.advance(GIB)
    lines = out.getvalue().splitlines()
    assert [int(found[1]) for line in lines if (found := re.search(r"(\d+) %", line))] == [
        *range(10, 101, 10)
    ]
    assert all("GiB" in line and "s left" in line for line in lines)


def test_what_an_earlier_run_did_does_not_count_as_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    shown = ByteProgress(Console(file=out), "converting", 100 * GIB)
    monkeypatch.setattr(shown, "_start_s", 0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: 10.0)
    shown.resume(80 * GIB)
    shown.advance(10 * GIB)
    assert out.getvalue() == "converting: 90 %, 90.00 of 100.00 GiB, 1024 MiB/s, 10 s left\n"
