"""What doctor looks at, in its order: the machine, its kernels, its links, whole rounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from eagle3_tools.aot.workers import Failure
from eagle3_tools.bench.doctor.all_reduce import check_all_reduces
from eagle3_tools.bench.doctor.findings import Finding
from eagle3_tools.bench.doctor.kernels import check_kernels
from eagle3_tools.bench.doctor.node import Look, Node, node_findings
from eagle3_tools.bench.doctor.rounds import check_rounds
from eagle3_tools.bench.doctor.served import Served
from eagle3_tools.bench.doctor.speed import check_speed
from eagle3_tools.bench.doctor.workers import Work, each
from pallas_kernels.self_check import CheckedCall
from pallas_kernels.self_check.quick import compile_quickly

REHEARSED_BYTES = 64 << 20
"""Most arguments of a kernel that is interpreted."""
MEMORY_SHARE = 0.2
"""Of a device's memory for a kernel's arguments: its contract widens them."""


@dataclass
class Examined:
    """Everything so far. complete: whether nothing was left out. kernels: of each call and device,
    shapes of `tensor_parallel_size` devices."""

    node: Node | None = None
    tensor_parallel_size: int | None = None
    kernels: list[CheckedCall] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    complete: bool = False

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not any(finding.bad for finding in self.findings)


@dataclass(frozen=True)
class Examination:
    """served: the model whose kernels are checked. xla_kernels: those that need not be, and that
    rounds run without. limit_s: for each look. work: what runs a job in its process."""

    served: Served
    xla_kernels: tuple[str, ...]
    limit_s: float
    work: Work

    def run(self, examined: Examined) -> Iterator[Finding]:
        """Adds to `examined` and yields each finding as it is made. Raises ValueError where JAX or
        the model's files are of no use."""
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
        raise ValueError(" ".join([found.reason, *found.said.splitlines()[-1:]]))
    return found


def most_bytes(node: Node) -> int:
    """Of a kernel's arguments."""
    memories = [device.memory for device in node.devices if device.memory is not None]
    return int(MEMORY_SHARE * min(memories)) if memories else REHEARSED_BYTES
