from failing_jobs import do

from pallas_kernels.aot.workers import Failure, run_each


def test_jobs_that_crash_hang_or_raise_fail_alone_and_the_others_run_in_order():
    jobs = ["first", "second", "crash", "third", "hang", "raise", "fourth"]
    results = list(run_each(do, jobs, processes=1, limit_s=1.0))
    words = [r.partition(" ")[0] if isinstance(r, str) else r for r in results]
    assert words[:2] + words[3:4] + words[6:] == ["first", "second", "third", "fourth"]
    assert results[2] == Failure(
        "its process was ended by SIGSEGV", "F0000 Check failed: registers"
    )
    assert results[4] == Failure("took longer than 1 s")
    assert results[5] == Failure("ValueError: no such tile")
    pids = [r.partition(" ")[2] for r in results if isinstance(r, str)]
    assert pids[0] == pids[1] and len(set(pids)) == 3  # A process is kept until it fails.
