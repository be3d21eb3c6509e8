"""The checks of `eagle3-bench doctor` in order: machine, kernels, links, whole rounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from eagle3_tools.bench.doctor.all_reduce import check_all_reduces
from eagle3_tools.bench.doctor.findings import Finding, Work, each
from eagle3_tools.bench.doctor.kernels import check_kernels
from eagle3_tools.bench.doctor.node import Look, Node, node_findings
from eagle3_tools.bench.doctor.rounds import check_rounds
from eagle3_tools.bench.doctor.served import Served
from eagle3_tools.bench.doctor.speed import check_speed
from eagle3_tools.checks.pool import Failure
from eagle3_tools.self_check import CheckedCall
from pallas_kernels.gpu import compile_quickly

REHEARSED_BYTES = 64 << 20
"""Most argument bytes of a kernel in interpret mode."""
MEMORY_SHARE = 0.2
"""Fraction of a device's memory for a kernel's arguments, which the reference widens."""


@dataclass
class Examined:
    """Results so far. `kernels` has each call on each device, with the shapes of this TP size."""

    node: Node | None = None
    tensor_parallel_size: int | None = None
    kernels: list[CheckedCall] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    complete: bool = False

    @property
    def holds(self) -> bool:
        """True if no finding is bad."""
        return not any(finding.bad for finding in self.findings)


@dataclass(frozen=True)
class Examination:
    """Checks of the model `served`, each limited to `limit_s` seconds; `work` runs a job.

    Operations in `xla_kernels` are not checked, and rounds run without their kernels.
    """

    served: Served
    xla_kernels: tuple[str, ...]
    limit_s: float
    work: Work

    def run(self, examined: Examined) -> Iterator[Finding]:
        """Run all checks, add each finding to `examined` and yield it.

        Raises ValueError if JAX does not start or the model's files are unusable.
        """
        for finding in self._looks(examined):
            examined.findings.append(finding)
            yield finding
        examined.complete = True

    def _looks(self, examined: Examined) -> Iterator[Finding]:
        looks = each([Look(), self.served], limit_s=self.limit_s, work=self.work)
        node: Node = _result(next(looks))
        examined.node = node
        yield from node_findings(node)
        if node.platform == "cpu":
            compile_quickly()
        count, limit_s = len(node.devices), self.limit_s
        size, calls = _result(next(looks))
        looks.close()
        examined.tensor_parallel_size = size
        calls = [call for call in calls if call.operation not in self.xla_kernels]
        for checked, found in check_kernels(calls, count, most_bytes(node), limit_s, self.work):
            examined.kernels += checked
            yield from found
        if node.platform != "cpu":
            yield from check_speed(limit_s, self.work)
        yield from check_all_reduces(count, limit_s, self.work)
        parts = self.served.config.decode_context_parallel_size
        yield from check_rounds(count, self.xla_kernels, limit_s, self.work, parts)


def _result(found: Any) -> Any:
    if isinstance(found, Failure):
        raise ValueError(found.brief)
    return found


def most_bytes(node: Node) -> int:
    """Return the most argument bytes of a kernel."""
    memories = [device.memory for device in node.devices if device.memory is not None]
    return int(MEMORY_SHARE * min(memories)) if memories else REHEARSED_BYTES
