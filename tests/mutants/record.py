"""Results of faults, kept between runs while row, source and tests stay the same."""

import json
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from mutants.rows import ROOT, Row

RECORD = ROOT / "docs/benchmarks/mutants.json"


class Record:
    """Noticed and surviving faults by area, each with the stamp of its row.

    Every result is written at once, so a run may be interrupted, and several runs may share a file.
    Results of rows that have changed are dropped.
    """

    def __init__(self, rows: list[Row], file: Path | None):
        """With `file=None` nothing is read or written."""
        self._file = file
        self._stamps = {(row.area, row.name): row.stamp for row in rows}
        self._areas: dict[str, dict[str, dict[str, str]]] = {}
        self._read()

    def has(self, row: Row) -> bool:
        """Return whether there is a result for this row."""
        return any(row.name in names for names in self._areas.get(row.area, {}).values())

    def note(self, row: Row, killed: bool) -> None:
        """Add the result of a row."""
        self._read()
        self._add(row.area, row.name, killed)
        if self._file is not None:
            killed_count, survived = self._counts()
            facts = {
                "commit": _commit(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "killed": killed_count,
                "survived": survived,
                "areas": self._areas,
            }
            partial = self._file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
            partial.replace(self._file)

    def print_table(self) -> float:
        """Print the results by area; return the share of faults that were noticed."""
        for name, area in sorted(self._areas.items()):
            print(f"{name:14} {len(area['killed']):4} killed {len(area['survived']):4} survived")
            for fault in area["survived"]:
                print(f"    SURVIVED {fault}")
        killed, survived = self._counts()
        share = killed / max(1, killed + survived)
        print(f"{'all':14} {killed:4} killed {survived:4} survived   {share:.1%}")
        return share

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        for area, found in json.loads(self._file.read_text(encoding="utf-8"))["areas"].items():
            for word, names in found.items():
                for name, stamp in names.items():
                    if self._stamps.get((area, name)) == stamp:
                        self._add(area, name, word == "killed")

    def _add(self, area: str, name: str, killed: bool) -> None:
        found = self._areas.setdefault(area, {"killed": {}, "survived": {}})
        for word, names in found.items():
            names.pop(name, None)
            if (word == "killed") == killed:
                names[name] = self._stamps[area, name]

    def _counts(self) -> tuple[int, int]:
        areas = self._areas.values()
        return sum(len(a["killed"]) for a in areas), sum(len(a["survived"]) for a in areas)


def _commit() -> str:
    return subprocess.check_output(("git", "rev-parse", "HEAD"), cwd=ROOT, text=True).strip()
