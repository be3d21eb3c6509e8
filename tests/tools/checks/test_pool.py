import sys
from pathlib import Path

import pytest
from failing_jobs import do

from eagle3_tools.checks.pool import Failure, run_each


def test_jobs_that_crash_hang_or_raise_fail_alone_and_the_others_run_in_order():
    """A process is kept until it fails, or calls a result its last."""
    jobs = ["first", "second", "crash", "hang", "raise", "third", "last", "fourth"]
    results = list(run_each(do, jobs, processes=1, limit_s=1.0))
    assert results[2] == Failure(
        "its process was ended by SIGSEGV", "F0000 Check failed: registers"
    )
    assert results[3] == Failure("took longer than 1 s")
    assert results[4] == Failure("ValueError: no such tile")
    words = [result.split(" ") for result in results if isinstance(result, str)]
    pids = dict(words)
    assert list(pids) == ["first", "second", "third", "last", "fourth"]
    assert pids["first"] == pids["second"] and pids["third"] == pids["last"]
    assert len(set(pids.values())) == 3


def test_jobs_of_a_module_that_cannot_be_imported_fail_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The module changes after its import here, before processes import it."""
    module = tmp_path / "vanishing.py"
    module.write_text("def do(job):\n    return job\n")
    monkeypatch.syspath_prepend(tmp_path)
    import vanishing  # pyright: ignore[reportMissingImports]

    module.write_text("raise SystemExit(3)\n")
    failure = Failure("its process left (3) while it imported vanishing")
    assert list(run_each(vanishing.do, [1, 2], processes=1, limit_s=1.0)) == [failure, failure]
    del sys.modules["vanishing"]
