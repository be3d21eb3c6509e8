"""The table of faults: one TOML file for each area of the product."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
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
        """Digest of the row, the definition that it changes and its tests, without their prose.

        A result is valid as long as this digest stays the same.
        """
        source = self.path.read_text(encoding="utf-8")
        first = source[: source.index(self.old)].count("\n") + 1
        last = first + self.old.count("\n")
        changed = [code for start, end, code in _code(self.path) if start <= last and first <= end]
        tests = [_code(ROOT / test.split("::")[0]) for test in self.tests]
        text = repr((self.old, self.new, self.tests, changed, tests))
        return sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.area}: {self.name}"


@cache
def _code(file: Path) -> tuple[tuple[int, int, str], ...]:
    """Return the first line, last line and syntax tree of a file's top-level statements.

    Comments, layout and docstrings are left out.
    """
    statements = ast.parse(file.read_text(encoding="utf-8")).body
    lines = [(node.lineno, node.end_lineno or node.lineno) for node in statements]
    for node in (inner for statement in statements for inner in ast.walk(statement)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                node.body = [each for each in node.body if not _is_text(each)]
    return tuple(
        (*place, ast.dump(node))
        for place, node in zip(lines, statements, strict=True)
        if not _is_text(node)
    )


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def read_rows() -> list[Row]:
    """Return all rows, by area; raise ValueError for a row with other keys than `KEYS`."""
    return [row for path in sorted(AREAS.glob("*.toml")) for row in rows_of(path)]


def rows_of(path: Path) -> Iterator[Row]:
    """Yield the rows of one table."""
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
