"""Flags of `eagle3-plan train`, read before anything imports JAX."""

from argparse import Namespace
from dataclasses import dataclass

from convert.command_line.parser import OneLineParser, add_about_flags
from convert.hub.source import add_hub_flags, source_of
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.options import PlanOptions

PROG = "eagle3-plan train"
TOKENS = 6e9
"""TorchSpec's data for a draft of Kimi-K2.5."""


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
        prog=PROG,
        description="Memory and time of training a draft on the devices that serve its target, by "
        "arithmetic from config.json (docs/planner.md).",
        example="eagle3-plan train --model /models/Kimi-K2.5 --draft /models/kimi-k2.5-eagle3 "
        "--gpu MI355X -tp 8",
    )
    add_about_flags(parser)
    add_hub_flags(parser, draft=True)
    add = parser.add_argument
    both = "config.json as published, or a directory or hub id with one"
    add("--model", metavar="CONFIG_OR_DIR", required=True, help=f"target: {both}")
    add("--draft", metavar="CONFIG_OR_DIR", required=True, help="the same of the draft to train")
    add("--gpu", choices=tuple(GPUS), default="MI355X", help="their kind")
    add("--tensor-parallel-size", "-tp", "--tp", type=int, default=8, help="GPUs of a replica")
    add("--enable-expert-parallel", action="store_true", help="whole experts on each GPU")
    add("--row-length", type=int, default=20480, help="tokens of a packed row; default: 20480")
    add("--rows", type=int, default=1, help="rows of a replica at a time; default: 1")
    add("--prefill-chunk", type=int, default=2048, help="as for eagle3-train; default: 2048")
    add("--unroll", type=int, default=4, help="steps of the chain; default: 4")
    add("--tokens", type=float, default=TOKENS, help="of all data; default: 6e9, TorchSpec's")
    add("--gpus", type=int, nargs="+", default=[8, 32], help="how many there are in all")
    return parser


def read_options(flags: Namespace) -> TrainingOptions:
    """Parse and check the flags. Raises ValueError, naming the flag, for invalid values."""
    for name in ("tensor_parallel_size", "row_length", "rows", "prefill_chunk", "unroll", "tokens"):
        if getattr(flags, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1")
    size = flags.tensor_parallel_size
    if uneven := [count for count in flags.gpus if count < 1 or count % size]:
        raise ValueError(f"--gpus {uneven[0]} is no multiple of --tensor-parallel-size {size}")
    pair = PlanOptions(
        model=source_of(flags, flags.model, flags.revision),
        draft=source_of(flags, flags.draft, flags.draft_revision),
        language_model_only=True,
        gpu=flags.gpu,
        parallel=Parallelism(size, size, flags.enable_expert_parallel),
        kv_cache_dtype="bfloat16",
        gpu_memory_utilization=0.9,
        max_model_len=flags.row_length,
        max_num_seqs=1,
        page_size=16,
        isl=flags.row_length,
        osl=1,
        concurrency=(1,),
        num_speculative_tokens=0,
        accept_lengths=(1.0,),
        kv_offloading_bytes=0,
    )
    sizes = flags.rows, flags.prefill_chunk, flags.unroll, flags.tokens
    return TrainingOptions(pair, *sizes, tuple(sorted(set(flags.gpus))))
