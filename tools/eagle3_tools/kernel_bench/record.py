"""Record of a session that may be interrupted: one JSON line for each finished item.

Lines: `conditions`, `ceilings`, one `case` each, and `bars` last, as `kind` states.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_tools.kernel_bench.measure import Measured
from eagle3_tools.kernel_bench.timing import Spread, Timed


@dataclass(frozen=True)
class Record:
    """A record file; with `path` None, nothing is written."""

    path: Path | None

    def begin(self, lines: Sequence[dict[str, Any]] = ()) -> None:
        """Replace the file atomically by these lines."""
        if self.path:
            begun = self.path.with_name(f"{self.path.name}.begun")
            begun.write_text("".join(map(_line, lines)), encoding="utf-8")
            begun.replace(self.path)

    def add(self, kind: str, **fields: Any) -> None:
        """Append a line and sync it to disk, so that a killed process loses none."""
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line({"kind": kind, **fields}))
                file.flush()
                os.fsync(file.fileno())


def read_record(path: Path) -> list[dict[str, Any]]:
    """Read the lines, without a truncated last one. Raises ValueError for other invalid lines."""
    *whole, _ = path.read_text(encoding="utf-8").split("\n")
    found = []
    for number, line in enumerate(whole, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: expected JSON, got {line[:60]!r}") from error
    return found


def measured_case(line: dict[str, Any]) -> Measured:
    """Convert a `case` line to a measurement."""
    fields = {name: value for name, value in line.items() if name != "kind"}
    timed, peers = fields.pop("timed"), fields.pop("peers")
    return Measured(
        **fields,
        timed=timed and Timed(*(Spread(**timed[name]) for name in ("us", "with_launch_us"))),
        peers={n: Spread(**v) if isinstance(v, dict) else v for n, v in peers.items()},
    )


def _line(fields: dict[str, Any]) -> str:
    return json.dumps(fields) + "\n"
