"""The table of faults: one TOML file for each area of the product."""

import tomllib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
AREAS = Path(__file__).parent / "areas"
KEYS = {"file", "old", "new", "tests"}


class Row(NamedTuple):
    """One fault: in `file`, the text `old` becomes `new`, and one of `tests` must fail.

    Paths are relative to the root of the checkout; tests are node ids of pytest.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def path(self) -> Path:
        return ROOT / self.file

    def faulty_source(self) -> bytes:
        """Return the text of `file` with the fault; raise ValueError for a stale row."""
        if not self.path.is_file():
            raise ValueError(f"{self}: {self.file} does not exist")
        source = self.path.read_text(encoding="utf-8")
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self}: expected its text once in {self.file}, found {count} times")
        return source.replace(self.old, self.new).encode()

    @property
    def stamp(self) -> str:
        """Digest of the row, its source file and its tests, for which a result is valid."""
        files = [self.path, *(ROOT / test.split("::")[0] for test in self.tests)]
        text = repr((self.old, self.new, self.tests)).encode()
        return sha256(text + b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.area}: {self.name}"


def read_rows() -> list[Row]:
    """Return all rows, by area; raise ValueError for a row with other keys than `KEYS`."""
    return [row for path in sorted(AREAS.glob("*.toml")) for row in _rows_of(path)]


def _rows_of(path: Path) -> Iterator[Row]:
    for name, fields in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if set(fields) != KEYS:
            raise ValueError(f"{path.name}: {name}: expected {sorted(KEYS)}, got {sorted(fields)}")
        tests = tuple(fields["tests"])
        yield Row(path.stem, name, fields["file"], fields["old"], fields["new"], tests)


def problems(row: Row) -> Iterator[str]:
    """Yield why a row no longer applies: its text is gone or repeated, or a test is gone."""
    try:
        compile(row.faulty_source(), row.file, "exec")
    except (ValueError, SyntaxError) as error:
        yield str(error)
    for test in row.tests:
        file, *names = test.split("[")[0].split("::")
        path = ROOT / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not text or not all(f"def {name}(" in text for name in names):
            yield f"{row}: {test} does not exist"
