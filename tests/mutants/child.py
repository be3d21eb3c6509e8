"""A forked process that runs tests with one fault in one module.

No product module is imported before the fork, so each process imports the module with its fault.
Files are never changed.
"""

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import hypothesis
import jax
import pytest

from mutants.install import install
from mutants.rows import ROOT, Row

hypothesis.settings.register_profile(
    "mutants", phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate), deadline=None
)
"""The first failure is sufficient: shrinking it takes longer than finding it."""
FLAGS = (
    *("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--timeout", "300"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of modules loaded before the fork
    *("-o", "addopts=--strict-markers -p no:schemathesis"),
)
"""Flags that also disable jaxtyping, whose checks load slower than most of these tests run."""


class Verdict(NamedTuple):
    """pytest's exit status, the first failed test, and whether the faulty module was imported."""

    status: int
    failed: str | None
    imported: bool


class _Observer:
    """A pytest plugin that shares compiled programs and notes the first failure.

    Programs are keyed by their HLO, so those of a faulty module are separate.
    """

    def __init__(self, programs: Path):
        self._programs = str(programs)
        self.failed: str | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Set the cache after tests/conftest.py, which has chosen an empty directory."""
        os.environ["JAX_COMPILATION_CACHE_DIR"] = self._programs
        jax.config.update("jax_compilation_cache_dir", self._programs)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid


def run(row: Row | None, tests: tuple[str, ...], caches: Path, log: Path, pipe: Connection) -> None:
    """Run `tests` with the fault of `row`, or without one, send a `Verdict` and exit."""
    os.setsid()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(ROOT)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(caches / "hypothesis")
    hypothesis.settings.load_profile("mutants")
    imported = install(row.path, row.faulty_source()) if row else []
    observer = _Observer(caches / "programs")
    status = pytest.main([*FLAGS, *tests], plugins=[observer])
    pipe.send(Verdict(int(status), observer.failed, bool(imported)))
    sys.stdout.flush()
    os._exit(0)
