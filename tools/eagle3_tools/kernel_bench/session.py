"""One run over the cases: each in a worker process, printed and recorded when it ends."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console

from eagle3_tools.checks.check import print_lines
from eagle3_tools.checks.pool import Failure, run_each
from eagle3_tools.checks.record import Record, read_record
from eagle3_tools.kernel_bench.ahead import THREADS
from eagle3_tools.kernel_bench.bars import Bar, bars
from eagle3_tools.kernel_bench.ceilings import Ceilings
from eagle3_tools.kernel_bench.measure import Measured, with_floor
from eagle3_tools.kernel_bench.peers import FLEX
from eagle3_tools.kernel_bench.timing import Spread
from eagle3_tools.kernel_bench.worker import NO_GPU, Job, Opening, work
from eagle3_tools.kernel_cases.case import Case


def described(result: Measured) -> Iterator[str]:
    """Yield time, fraction of the floor and every peer of a case."""
    if result.timed is None:
        yield f"{result.case}: {result.refused}"
        return
    us, launch = result.timed.us, result.timed.with_launch_us
    verdict = "right" if result.right else "WRONG"
    yield (
        f"{result.case}: {_us(us)}, with launch {launch.median:.1f}; share of floor "
        f"{result.share:.2f}; {verdict} ({result.error:.1e})"
    )
    for name, peer in result.peers.items():
        if isinstance(peer, str):
            yield f"    {name}: none, {peer}"
        else:
            yield f"    {name}: {_us(peer)}; vs peer {peer.median / us.median:.2f}x"


def judged(found: Sequence[Bar], *, dry_run: bool) -> Iterator[str]:
    """Yield each goal with its worst case."""
    for bar in found:
        word = "no meaning in a dry run" if dry_run else "met" if bar.met else "NOT MET"
        yield f"{word}: {bar.text} (>= {bar.least:.2f}): {bar.value:.2f} at {bar.case}"


def _us(spread: Spread) -> str:
    return f"{spread.median:.1f} us ({spread.low:.1f}-{spread.high:.1f})"


DRY_RUN = "a dry run on a CPU at small sizes: no time, share or ratio here means anything"


class Session:
    """Runs the cases, prints and records their results, and checks the goals at the end."""

    def __init__(
        self,
        console: Console,
        record: Record,
        cases: Sequence[Case],
        *,
        dry_run: bool,
        with_peers: bool = True,
    ) -> None:
        self._console, self._record = console, record
        self._dry_run, self._with_peers = dry_run, with_peers
        self._cases = {case.name: case for case in cases}
        self._ceilings: Ceilings | None = None
        self._results: list[Measured] = []

    def run(
        self, until: float, limit_s: float, *, resume: bool = False, crash: str | None = None
    ) -> int:
        """Run the cases and return the exit status.

        until: `time.time()` after which no case is started. limit_s: limit for one case. resume:
        skip cases that the record has a measurement of. crash: cases with this text in their name
        end their process.
        """
        self._begin(resume)
        jobs = self._jobs(until, crash)
        with_results = zip(jobs, run_each(work, jobs, processes=1, limit_s=limit_s), strict=True)
        for job, result in with_results:
            if isinstance(result, Failure) and NO_GPU in result.reason:
                print(NO_GPU, file=sys.stderr)
                return 2
            if job.case:
                self._end_case(job, result)
            else:
                self._open(result)
        return self._close()

    def _begin(self, resume: bool) -> None:
        path = self._record.path
        kept = read_record(path) if resume and path and path.exists() else []
        kept = [line for line in kept if line["kind"] != "bars"]
        self._record.begin(kept)
        cases = [Measured.of_line(line) for line in kept if line["kind"] == "case"]
        self._results = [result for result in cases if result.timed]

    def _jobs(self, until: float, crash: str | None) -> list[Job]:
        done = {result.case for result in self._results}
        names = [name for name in self._cases if name not in done]
        jobs = [Job("", tuple(names[:THREADS]), self._dry_run, with_peers=self._with_peers)]
        for i, name in enumerate(names, 1):
            ends = crash is not None and crash in name
            ahead = tuple(names[i : i + THREADS])
            jobs.append(Job(name, ahead, self._dry_run, until, self._with_peers, crash=ends))
        attention = [name for name, case in self._cases.items() if case.operation == "mla_decode"]
        if not self._with_peers or any(FLEX in result.peers for result in self._results):
            return jobs
        return jobs + [Job(name, (), self._dry_run, until, peer=FLEX) for name in attention[:1]]

    def _open(self, result: Opening | Failure) -> None:
        if isinstance(result, Failure):
            self._record.add("ceilings", failed=f"{result}")
            self._console.print(f"no ceilings: {result.reason}", markup=False)
            return
        self._ceilings = result.ceilings
        self._record.add("conditions", dry_run=self._dry_run, **result.conditions)
        self._record.add("ceilings", **asdict(result.ceilings))
        if self._dry_run:
            self._console.print(DRY_RUN)
        print_lines(self._console, [f"{result.ceilings}"])

    def _end_case(self, job: Job, result: Measured | Failure) -> None:
        case = self._cases[job.case]
        if isinstance(result, Failure):
            why = f"{result.reason}; {result.said}".strip("; ")
            result = Measured(case.name, case.operation, refused=why)
        measured = with_floor(result, case, self._ceilings)
        self._results.append(measured)
        self._record.add("case", **asdict(measured))
        print_lines(self._console, described(measured))

    def _close(self) -> int:
        late = [result for result in self._results if result.refused.startswith("not begun")]
        if late:
            self._console.print(f"{len(late)} of {len(self._results)} cases were not begun in time")
        met = bars(self._results)
        print_lines(self._console, judged(met, dry_run=self._dry_run))
        self._record.add("bars", bars=[{**asdict(bar), "met": bar.met} for bar in met])
        failed = [r for r in self._results if not r.right and r not in late]
        return 1 if failed else 0
