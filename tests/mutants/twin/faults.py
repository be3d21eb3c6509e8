"""The table of faults."""

from pathlib import Path

from mutants.rows import Row, rows_of

PROBES = {
    "pages": (1, ("eagle3_tools.walk.pages",)),
    "answer 1": (1, ("eagle3_tools.walk.answer", "1")),
    "answer 2": (2, ("eagle3_tools.walk.answer", "2")),
    "doctor": (4, ("mutants.twin.doctor",)),
}
"""Name -> devices and command. Each prints a JSON object and ends with 0 if nothing is wrong."""


def faults() -> list[Row]:
    """Return the rows; each one's `tests` is the name of a probe."""
    return list(rows_of(Path(__file__).with_name("faults.toml")))
