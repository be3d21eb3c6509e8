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
