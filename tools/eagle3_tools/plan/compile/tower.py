"""python -m eagle3_tools.plan.compile.tower CONFIG: compile the vision tower at full size.

CONFIG is the config.json of a target that takes images. Needs the extra `rocm`, gcc and binutils,
or `cuda-check`; no GPU. Exit status 1 if a program does not compile or does not meet its
expectations.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from convert.command_line.parser import OneLineParser
from convert.files.safetensors_files import read_json
from convert.published.vision import abstract_vision
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.layers.patch_positions import PatchPositions
from eagle3_jax.vision.packing import bucket_of, largest_bucket
from eagle3_tools.aot import Program, compile_program
from eagle3_tools.aot.expectations import copy_problems
from eagle3_tools.aot.launches import launches
from eagle3_tools.aot.targets import target_of
from eagle3_tools.checks.check import Check, console_of
from eagle3_tools.kernel_cases.case import AMD, ARCHS
from eagle3_tools.plan.compile.compiled_round import nbytes
from eagle3_tools.plan.compile.report import (
    MOST_BESIDE_PLAN,
    ProgramReport,
    columns,
    refusals,
    report_of,
    shared_problems,
)
from eagle3_tools.plan.model.memory import encoding_bytes

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


def main(argv: Sequence[str] | None = None) -> int:
    parser = OneLineParser(prog="python -P -m eagle3_tools.plan.compile.tower", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument(
        "--arch",
        choices=ARCHS,
        action="append",
        help="architecture to compile for; default: all that the installed compilers support",
    )
    flags = parser.parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    try:
        jobs = _jobs(flags)
    except (ValueError, OSError) as error:
        parser.error(f"{error}")
    results = TOWERS.results(jobs, LIMIT_S, os.cpu_count() or 1)
    return 0 if TOWERS.print(console_of(), jobs, results) else 1


def _jobs(flags: Namespace) -> list[Job]:
    config = VisionConfig.from_hf(read_json(flags.config))
    archs = [arch for arch in flags.arch or ARCHS if target_of(arch).is_installed()]
    if not archs:
        raise ValueError("neither of XLA's compilers for GPUs is installed")
    sizes = bucket_of(COMMON, config.token_patches), largest_bucket(config)
    return [Job(flags.config, arch, size) for arch in archs for size in sizes]


def report_tower(job: Job) -> ProgramReport:
    """Compile the encoding of an image into retained rows, as in the engine."""
    begin = time.monotonic()
    config = VisionConfig.from_hf(read_json(job.config))
    run, weights, *images = tower_program(config, job.patches)
    tokens = job.patches // config.token_patches
    kept = jax.ShapeDtypeStruct((tokens + 1, config.text_hidden_size), jnp.bfloat16)

    def encode(weights: nnx.State, kept: Array, *images: Any) -> Array:
        return kept.at[:tokens].set(run(weights, *images).astype(kept.dtype))

    with refusals() as refused:
        program = compile_program(job.arch, encode, weights, kept, *images, donate=(1,))
    planned, per_block = encoding_bytes(config, job.patches), _launches_per_block(program, config)
    problems = tower_problems(job, config, program, jax.tree.leaves(weights), planned, per_block)
    return report_of(
        job,
        program,
        [*refused, *problems],
        begin=begin,
        planned={"temporaries": planned},
        per_layer=per_block,
        figures={"weights": nbytes(jax.tree.leaves(weights))},
    )


def tower_program(config: VisionConfig, count: int) -> tuple[Any, ...]:
    """Return the tower as a function, and its arguments' shapes: weights, `count` patches, places.

    Weights are bfloat16.
    """
    graph, weights = nnx.split(abstract_vision(config, jnp.bfloat16))
    column: Any = jax.ShapeDtypeStruct((count,), jnp.int32)
    side = config.patch_size
    patches = jax.ShapeDtypeStruct((count, 3, side, side), jnp.uint8)
    places = PatchPositions(*[column] * len(PatchPositions._fields))

    def encode(weights: nnx.State, *images: Any) -> Array:
        return nnx.merge(graph, weights)(*images)

    return encode, weights, patches, places


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
    yield from shared_problems(program, temporaries=sys.maxsize)
    tokens = job.patches // config.token_patches
    yield from copy_problems(program, weights, {job.patches, tokens, config.num_attention_heads})
    if job.arch not in AMD:
        return
    if program.temporary_bytes > planned * (1 + MOST_BESIDE_PLAN):
        yield f"{program.temporary_bytes:,} B of temporaries, {planned:,} were planned"
    if per_block > MOST_LAUNCHES:
        yield f"{per_block:g} launches a block, {MOST_LAUNCHES} would do"


TOWERS = Check[Job, ProgramReport](
    name="The vision tower at full size: what one device holds and launches",
    build=_jobs,
    run=report_tower,
    reuse=True,
    label=lambda job: f"{job.arch}, {job.patches} patches",
    heads={"GPU": lambda job: job.arch, "patches": lambda job: f"{job.patches:,}"},
    columns={
        "weights, B": lambda found: f"{found.figures['weights']:,}",
    }
    | columns("tempora-\nries MiB", "of\nthe plan", "launches\na layer", "launches\nin all", "\ns"),
)

if __name__ == "__main__":
    sys.exit(main())
