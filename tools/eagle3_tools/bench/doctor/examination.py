"""The checks of `eagle3-bench doctor` in order: machine, kernels, links, whole rounds."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from eagle3_tools.bench.doctor.all_reduce import check_all_reduces
from eagle3_tools.bench.doctor.amd_nodes import known_faults
from eagle3_tools.bench.doctor.findings import Finding, Run
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
        return not any(finding.bad for finding in self.findings)


def examine(
    examined: Examined, served: Served, xla_kernels: tuple[str, ...], run: Run
) -> Iterator[Finding]:
    """Run all checks of the model `served`, add each finding to `examined` and yield it.

    Operations in `xla_kernels` are not checked, and rounds run without their kernels. Raises
    ValueError if JAX does not start or the model's files are unusable.
    """
    for finding in _findings(examined, served, xla_kernels, run):
        examined.findings.append(finding)
        yield finding
    examined.complete = True


def _findings(
    examined: Examined, served: Served, xla_kernels: tuple[str, ...], run: Run
) -> Iterator[Finding]:
    looks = run([Look(), served])
    examined.node = node = _result(next(looks))
    yield from node_findings(node)
    yield from known_faults(node)
    if node.platform == "cpu":
        compile_quickly()
    count, (size, calls) = len(node.devices), _result(next(looks))
    examined.tensor_parallel_size = size
    calls = [call for call in calls if call.operation not in xla_kernels]
    for checked, found in check_kernels(calls, count, most_bytes(node), run):
        examined.kernels += checked
        yield from found
    if node.platform != "cpu":
        yield from check_speed(run)
    yield from check_all_reduces(count, run)
    yield from check_rounds(count, xla_kernels, run, served.config.decode_context_parallel_size)


def _result(found: Any) -> Any:
    if isinstance(found, Failure):
        raise ValueError(found.brief)
    return found


def most_bytes(node: Node) -> int:
    memories = [device.memory for device in node.devices if device.memory is not None]
    return int(MEMORY_SHARE * min(memories)) if memories else REHEARSED_BYTES
