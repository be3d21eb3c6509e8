"""python -m eagle3_tools.plan.compile.tower CONFIG: compile the vision tower at full size.

CONFIG is the config.json of a target that takes images. Needs the extra `rocm`, gcc and binutils,
or `cuda-check`; no GPU. Exit status 1 if a program does not compile or does not meet its
expectations.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from rich.console import Console
from rich.table import Table

from convert.command_line.parser import OneLineParser
from convert.files.safetensors_files import read_json
from convert.published.vision import abstract_vision
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.vision.packing import bucket_of, largest_bucket
from eagle3_tools.aot import Program, compile_program
from eagle3_tools.aot.expectations import MIB, copy_problems, kernel_problems
from eagle3_tools.aot.launches import count, launches
from eagle3_tools.aot.targets import target_of
from eagle3_tools.aot.workers import Failure, run_each
from eagle3_tools.plan.cli import FILE_WIDTH
from eagle3_tools.plan.compile.full_size import refusals
from eagle3_tools.plan.compile.full_size_problems import MOST_BESIDE_PLAN
from eagle3_tools.plan.model.memory import encoding_bytes
from eagle3_tools.plan.model.weights import model_bytes
from pallas_kernels.case import AMD, ARCHS

MOST_LAUNCHES = 8
"""Most launches of a block on AMD GPUs: two norms, four products with their biases, q, k and v by
heads, and attention. For NVIDIA GPUs, XLA chooses products and fusions by measuring, which is
impossible here."""
COMMON = 4096
"""Patches of an image of 900 x 900 pixels, compiled in addition to the largest size."""
LIMIT_S = 600.0


@dataclass(frozen=True)
class Job:
    """The tower of a config.json, for a number of patches."""

    config: Path
    arch: str
    patches: int


@dataclass(frozen=True)
class TowerReport:
    """Report of a tower; bytes are those of one device. planned_bytes: temporaries by the plan.
    per_block: launches of a block; program: of all blocks."""

    job: Job
    weights: int
    temporary_bytes: int
    planned_bytes: int
    per_block: float
    program: int
    failures: tuple[str, ...]
    seconds: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -m eagle3_tools.plan.compile.tower", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--arch", choices=ARCHS, action="append", help="default: all that can be")
    flags = parser.parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        config = VisionConfig.from_hf(read_json(flags.config))
    except (ValueError, OSError) as error:
        parser.error(f"{error}")
    archs = [arch for arch in flags.arch or ARCHS if target_of(arch).is_installed()]
    if not archs:
        parser.error("neither of XLA's compilers for GPUs is installed")
    sizes = bucket_of(COMMON, config.token_patches), largest_bucket(config)
    jobs = [Job(flags.config, arch, size) for arch in archs for size in sizes]
    results = list(run_each(report_tower, jobs, processes=os.cpu_count() or 1, limit_s=LIMIT_S))
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    console.print(_table(jobs, results))
    failures = list(_failures(jobs, results))
    console.print("\n".join(failures), markup=False, highlight=False, soft_wrap=True)
    return 1 if failures else 0


def report_tower(job: Job) -> TowerReport:
    """Compile the encoding of an image into retained rows, as in the engine."""
    begin = time.monotonic()
    config = VisionConfig.from_hf(read_json(job.config))
    model = abstract_vision(config, jnp.bfloat16)
    graph, weights = nnx.split(model)
    tokens = job.patches // config.token_patches
    kept = jax.ShapeDtypeStruct((tokens + 1, config.text_hidden_size), jnp.bfloat16)
    column: Any = jax.ShapeDtypeStruct((job.patches,), jnp.int32)
    side = config.patch_size
    patches = jax.ShapeDtypeStruct((job.patches, 3, side, side), jnp.uint8)

    def encode(weights: nnx.State, kept: Array, patches: Array, places: PatchPositions) -> Array:
        found = nnx.merge(graph, weights)(patches, places)
        return kept.at[:tokens].set(found.astype(kept.dtype))

    with refusals() as refused:
        places = PatchPositions(*[column] * len(PatchPositions._fields))
        program = compile_program(job.arch, encode, weights, kept, patches, places, donate=(1,))
    planned, total = encoding_bytes(config, job.patches), count(launches(program.hlo))
    per_block = _launches_per_block(program, config)
    leaves = jax.tree.leaves(weights)
    problems = [*refused, *tower_problems(job, config, program, leaves, planned, per_block)]
    return TowerReport(
        job,
        model_bytes(model).device_nbytes,
        program.temporary_bytes,
        planned,
        per_block,
        total,
        tuple(dict.fromkeys(problems)),
        round(time.monotonic() - begin, 1),
    )


def _launches_per_block(program: Program, config: VisionConfig) -> float:
    """Return the mean launches from one block's attention to the next."""
    names = [one.name for one in launches(program.hlo)]
    places = [place for place, name in enumerate(names) if name.startswith("item_attention")]
    if len(places) != config.num_hidden_layers:
        return float("inf")
    return (places[-1] - places[0]) / (len(places) - 1)


def tower_problems(
    job: Job,
    config: VisionConfig,
    program: Program,
    weights: Sequence[jax.ShapeDtypeStruct],
    planned: int,
    per_block: float,
) -> Iterator[str]:
    """Yield every violation."""
    for kernel in program.kernels:
        yield from kernel_problems(kernel, job.arch)
    tokens = job.patches // config.token_patches
    yield from copy_problems(program, weights, {job.patches, tokens, config.num_attention_heads})
    if job.arch not in AMD:
        return
    if program.temporary_bytes > planned * (1 + MOST_BESIDE_PLAN):
        yield f"{program.temporary_bytes:,} B of temporaries, {planned:,} were planned"
    if per_block > MOST_LAUNCHES:
        yield f"{per_block:g} launches a block, {MOST_LAUNCHES} would do"


def _table(jobs: Sequence[Job], results: Sequence[TowerReport | Failure]) -> Table:
    shown = Table(title="The vision tower at full size: what one device holds and launches")
    for heading in ("GPU", "patches"):
        shown.add_column(heading)
    headings = "weights, B", "temporaries\nMiB", "of\nplan", "launches\na block", "in all", "s"
    for heading in headings:
        shown.add_column(heading, justify="right")
    for job, result in zip(jobs, results, strict=True):
        cells = ("FAILED",) if isinstance(result, Failure) else _cells(result)
        shown.add_row(job.arch, f"{job.patches:,}", *cells)
    return shown


def _cells(report: TowerReport) -> tuple[str, ...]:
    return (
        f"{report.weights:,}",
        f"{report.temporary_bytes / MIB:.0f}",
        f"{report.temporary_bytes / report.planned_bytes:.0%}",
        f"{report.per_block:g}",
        f"{report.program}",
        f"{report.seconds:.0f}",
    )


def _failures(jobs: Sequence[Job], results: Sequence[TowerReport | Failure]) -> Iterator[str]:
    for job, result in zip(jobs, results, strict=True):
        reasons = (
            [f"{result.reason} {result.said}"] if isinstance(result, Failure) else result.failures
        )
        yield from (f"FAILED {job.arch}, {job.patches} patches: {reason}" for reason in reasons)


if __name__ == "__main__":
    sys.exit(main())
