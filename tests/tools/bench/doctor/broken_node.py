"""A node with two devices: one kernel is wrong on the second, one crashes on the first, and a
round over both has another token than the CPU."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_tools.bench.doctor.kernels import KernelJob
from eagle3_tools.bench.doctor.node import Look
from eagle3_tools.bench.doctor.rounds import Explain, PlainOnCpu, Round
from eagle3_tools.bench.doctor.served import Served
from eagle3_tools.bench.equality.ties import Difference
from eagle3_tools.checks.pool import Failure
from pallas_kernels.add_norm import ADD_NORM
from pallas_kernels.rms_norm import Norm

DEVICES = 2
CHECKED = ("add_norm", "absorb_query")
"""Of the embedded pair's calls, few enough for a test."""


def wrong_add_norm(x: Any, added: Any, norm: Norm) -> Any:
    """A tenth more than it should be, on the second device."""
    total, normed = ADD_NORM.pallas(x, added, norm)
    return total, jnp.where(jax.lax.axis_index("device") == 1, 1.1, 1).astype(x.dtype) * normed


def work(job: Any) -> Any:
    """Return what a process of the doctor would send back on such a node."""
    if isinstance(job, Served):
        size, calls = job()
        firsts = {call.operation: call for call in reversed(calls)}
        firsts["add_norm"] = replace(firsts["add_norm"], kernel=wrong_add_norm)
        return size, [firsts[name] for name in CHECKED]
    if isinstance(job, PlainOnCpu | Round):
        return [[1, 2, 3], [4, 5, 6 if isinstance(job, PlainOnCpu) or job.size == 1 else 7]]
    if isinstance(job, Explain):
        return [Difference("second", 2, (6, 7), None, 0.5, 1.0)]
    if isinstance(job, KernelJob) and job.call.operation == "absorb_query" and 0 in job.devices:
        return Failure("its process was ended by SIGSEGV")
    if isinstance(job, Look):
        node = job()
        return replace(node, devices=node.devices[:DEVICES])
    return job()
