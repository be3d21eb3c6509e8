"""Flags of `eagle3-plan train`, read before anything imports JAX."""

from argparse import Namespace
from dataclasses import dataclass

from convert.command_line.options import COUNT, POSITIVE, add_options, option
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.hub.source import add_hub_flags, source_of
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.options import CONFIG, GpuFlags, PlanOptions
from serve.options.parallel import ParallelOptions

TOKENS = 6e9
"""TorchSpec's data for a draft of Kimi-K2.5."""


@dataclass(frozen=True)
class TrainingFlags:
    """The pair, the data and the GPUs."""

    model: str = option("--model CONFIG_OR_DIR", f"target: {CONFIG}", required=True)
    draft: str = option("--draft CONFIG_OR_DIR", "the same of the draft to train", required=True)
    row_length: int = option("--row-length N", "tokens of a packed row", COUNT, default=20480)
    rows: int = option("--rows N", "rows of a replica at a time", COUNT, default=1)
    chunk: int = option("--prefill-chunk N", "as for eagle3-train", COUNT, default=2048)
    unroll: int = option("--unroll N", "steps of the chain", COUNT, default=4)
    tokens: float = option(
        "--tokens N", "of all data; default: 6e9, TorchSpec's", POSITIVE, default=TOKENS
    )
    gpus: tuple[int, ...] = option(
        "--gpus N", "how many there are in all", COUNT, default=(8, 32), nargs="+"
    )


@dataclass(frozen=True)
class TrainingOptions:
    """pair: models, GPUs of a replica, tokens of a row. rows: processed at a time on these GPUs.
    chunk: tokens that the target takes at a time. tokens: of all data. gpus: total numbers of GPUs.
    """

    pair: PlanOptions
    rows: int
    chunk: int
    unroll: int
    tokens: float
    gpus: tuple[int, ...]


def build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="eagle3-plan train",
        description="Memory and time of training a draft on the devices that serve its target, by "
        "arithmetic from config.json (docs/planner.md).",
        example="eagle3-plan train --model /models/Kimi-K2.5 --draft /models/kimi-k2.5-eagle3 "
        "--gpu MI355X -tp 8",
    )
    add_about_flags(parser)
    add_hub_flags(parser, draft=True)
    add_options(parser, GpuFlags, "gpu")
    add_options(parser, ParallelOptions, "tensor_parallel_size", "enable_expert_parallel")
    add_options(parser, TrainingFlags)
    parser.set_defaults(tensor_parallel_size=8)
    return parser


def read_options(flags: Namespace) -> TrainingOptions:
    """Check the flags together. Raises ValueError, naming the flag, for contradictions."""
    size = flags.tensor_parallel_size
    if uneven := [count for count in flags.gpus if count % size]:
        raise ValueError(f"--gpus {uneven[0]} is no multiple of --tensor-parallel-size {size}")
    pair = PlanOptions(
        model=source_of(flags, flags.model, flags.revision),
        draft=source_of(flags, flags.draft, flags.draft_revision),
        language_model_only=True,
        gpu=flags.gpu,
        parallel=Parallelism(size, size, flags.enable_expert_parallel),
        max_model_len=flags.row_length,
        isl=flags.row_length,
        osl=1,
    )
    sizes = flags.rows, flags.chunk, flags.unroll, flags.tokens
    return TrainingOptions(pair, *sizes, tuple(sorted(set(flags.gpus))))
