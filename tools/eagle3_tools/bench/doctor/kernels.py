"""Compare kernels with their references on every device."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3_tools.bench.doctor.findings import Finding, Run, numbered
from eagle3_tools.bench.doctor.served import assumed_gpu
from eagle3_tools.checks.pool import Failure
from eagle3_tools.self_check import Call, CheckedCall, check_call

PROCESSES = 2
"""Processes at a time. Most of the time is compilation on one core; they share the devices."""


@dataclass(frozen=True)
class KernelJob:
    """Job that checks one call on several devices at once."""

    call: Call
    devices: tuple[int, ...]
    most_bytes: int

    def __call__(self) -> list[CheckedCall]:
        with assumed_gpu():
            return check_call(self.call, self.devices, self.most_bytes)


def check_kernels(
    calls: Sequence[Call], devices: int, most_bytes: int, run: Run
) -> Iterator[tuple[list[CheckedCall], list[Finding]]]:
    """Check each call on all devices; repeat one that crashes or hangs on each device alone."""
    every = tuple(range(devices))
    jobs = [KernelJob(call, every, most_bytes) for call in calls]
    results = run(jobs, processes=PROCESSES)
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, Failure):
            alone = [KernelJob(job.call, (device,), most_bytes) for device in every]
            found = list(run(alone)) if devices > 1 else [result]
            yield _one_by_one(job.call, found, result)
        else:
            yield result, list(kernel_findings(result))


def _one_by_one(
    call: Call, results: Sequence[list[CheckedCall] | Failure], together: Failure
) -> tuple[list[CheckedCall], list[Finding]]:
    checked = [one for result in results if not isinstance(result, Failure) for one in result]
    failed = [(device, r) for device, r in enumerate(results) if isinstance(r, Failure)]
    findings = list(kernel_findings(checked))
    subject = f"{call.operation} {call.shapes}"
    if not failed:
        seen = f"on all devices at once {_reason(together)}; one by one it ran"
        findings.append(Finding("FAILED", "kernel", subject, seen, "run it again, and report it"))
    for device, failure in failed:
        seen = f"device {device}: {_reason(failure)}"
        findings.append(Finding("FAILED", "kernel", subject, seen, _switch_off(call.operation)))
    return checked, findings


def kernel_findings(checked: Sequence[CheckedCall]) -> Iterator[Finding]:
    """Yield one line for the devices where a call is right, and one for those where it is wrong."""
    for wrong in (False, True):
        some = [one for one in checked if one.wrong is wrong]
        if not some:
            continue
        first, devices = some[0], numbered([one.device for one in some])
        subject = f"{first.operation} {first.shapes}"
        if first.refused:
            advice = "it runs as XLA's: right, and slower"
            yield Finding("refused", "kernel", subject, first.refused, advice)
            continue
        worst = max(one.error or 0.0 for one in some)
        seen = f"{devices}: worst error {worst:.1e} of {first.tolerance:.0e}"
        if wrong:
            only = "" if len(some) == len(checked) else f"{devices} may be broken, and "
            advice = only + _switch_off(first.operation)
            yield Finding("WRONG", "kernel", subject, seen, advice)
        else:
            yield Finding("ok", "kernel", subject, seen)


def _switch_off(operation: str) -> str:
    return f"its results can't be used: serve with --xla-kernels {operation}, and report it"


def _reason(failure: Failure) -> str:
    said = failure.said.splitlines()[-1:]
    return " ".join([failure.reason, *(f"({line[:200]})" for line in said)])
