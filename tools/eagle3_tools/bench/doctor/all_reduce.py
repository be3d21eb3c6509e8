"""Check all-reduces with integers, whose sums are exact in any order."""

from collections.abc import Iterator
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_tools.bench.doctor.findings import Finding, Run, numbered
from eagle3_tools.checks.pool import Failure

ELEMENTS = (7168, 64 * 7168, 1 << 22)
"""A row of Kimi-K2.5, the rows of a step, and a large message: libraries take other paths."""
LARGEST_SUM = 256
"""Largest sum: integers up to here are exact in bfloat16."""


@dataclass(frozen=True)
class AllReduce:
    """Job that all-reduces over groups of `size` adjacent devices, all groups at once.

    It returns, for each dtype and length, the devices with a wrong sum.
    """

    size: int

    def __call__(self) -> list[tuple[str, int, list[int]]]:
        devices = np.array(jax.devices())
        groups = len(devices) // self.size
        mesh = Mesh(devices[: groups * self.size].reshape(groups, self.size), ("group", "member"))
        every = NamedSharding(mesh, PartitionSpec(("group", "member")))
        found = []
        for dtype in (jnp.bfloat16, jnp.float32):
            for elements in ELEMENTS:
                parts = _integers(groups * self.size, self.size, elements)
                wanted = parts.reshape(groups, self.size, elements).sum(1).repeat(self.size, axis=0)
                add = jax.shard_map(
                    lambda x: jax.lax.psum(x, "member"),
                    mesh=mesh,
                    in_specs=every.spec,
                    out_specs=every.spec,
                    check_vma=False,
                )
                got = jax.jit(add)(jax.device_put(parts.astype(dtype), every))
                wrong = (np.asarray(got).astype(np.float32) != wanted).any(axis=1)
                found.append((jnp.dtype(dtype).name, elements, np.flatnonzero(wrong).tolist()))
        return found


def _integers(devices: int, size: int, elements: int) -> np.ndarray:
    """Draw different integers for each device, so small that a sum of `size` of them is exact."""
    drawn = np.random.default_rng(size).integers(0, LARGEST_SUM // size, (devices, elements))
    return drawn.astype(np.float32)


def check_all_reduces(devices: int, run: Run) -> Iterator[Finding]:
    sizes = [size for size in (2, 4, 8, 16) if size < devices] + [devices] * (devices > 1)
    if not sizes:
        yield Finding("note", "all-reduce", "1 device", "there is nothing to add up")
    jobs = [AllReduce(size) for size in sizes]
    for job, result in zip(jobs, run(jobs), strict=True):
        subject = f"over {job.size} devices"
        if isinstance(result, Failure):
            advice = UNUSABLE.format(job.size)
            yield Finding("FAILED", "all-reduce", subject, result.brief, advice)
            continue
        wrong = [entry for entry in result if entry[2]]
        for dtype, elements, places in wrong:
            seen = f"{dtype}[{elements}] differs on {numbered(places)}"
            yield Finding("WRONG", "all-reduce", subject, seen, UNUSABLE.format(job.size))
        if not wrong:
            yield Finding("ok", "all-reduce", subject, f"{len(result)} sums are exact")


UNUSABLE = (
    "--tensor-parallel-size {} can't be used here: check the links between the GPUs, their driver "
    "and the collectives' library"
)
