"""Flags of eagle3-plan and their values, read before anything imports JAX."""

import argparse
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from convert.command_line.options import add_options
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.hub.source import Source, add_hub_flags, source_of
from eagle3_jax.engine.config import MAX_LOOKUP_TOKENS, MAX_SPECULATIVE_TOKENS
from eagle3_tools.plan.data.gpus import GIB, GPUS
from eagle3_tools.plan.model.acceptance import ACCEPT_LENGTHS, accept_lengths
from eagle3_tools.plan.model.parallel import Parallelism
from serve.options.parallel import NoReplicas, ParallelOptions

PROG = "eagle3-plan"
BY_ARCH = {"gfx950": "MI355X", "gfx942": "MI325X"}
COUNTS = ("tensor_parallel_size", "isl", "osl", "block_size")
COUNTS += ("max_model_len", "max_num_seqs", "draft_tensor_parallel_size")
COUNTS += ("decode_context_parallel_size",)


@dataclass(frozen=True)
class PlanOptions:
    """Parsed command line. isl, osl: tokens of a prompt and of its answer.

    accept_lengths: for k = 0, 1, … language_model_only: without the vision tower.
    """

    model: Source
    draft: Source | None
    language_model_only: bool
    gpu: str
    parallel: Parallelism
    kv_cache_dtype: str
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    page_size: int
    isl: int
    osl: int
    concurrency: tuple[int, ...]
    num_speculative_tokens: int
    accept_lengths: tuple[float, ...]
    kv_offloading_bytes: int
    num_lookup_tokens: int = 0

    @property
    def context(self) -> float:
        """Mean KV tokens of a sequence while it is decoded."""
        return self.isl + self.osl / 2


def build_parser() -> OneLineParser:
    """Build the parser, with the flags in groups."""
    parser = OneLineParser(
        prog=PROG,
        description="What a pair of models needs on GPUs, and what it could do there: arithmetic "
        "from config.json, or with --compile its round at full size through XLA's ROCm compiler. "
        "Both are explained in docs/planner.md.",
        example="eagle3-plan --model /models/Kimi-K2.5-MXFP4 --draft /models/kimi-k2.5-eagle3-fp8 "
        "--gpu MI355X -tp 4 --isl 1024 --osl 1024",
    )
    add_about_flags(parser)
    parser.add_argument(
        "--constants",
        action="store_true",
        help="print the constants that are assumed of each GPU, and exit",
    )
    parser.add_argument(
        "--kernels",
        nargs="?",
        const="",
        metavar="TEXT",
        help="print what the model of the compiled code says of our kernels (of cases with TEXT in "
        "their name) and of whole rounds, and leave",
    )
    parser.add_argument(
        "--before",
        type=Path,
        metavar="FOLDER",
        help="with --kernels: print what changed since the record of that folder",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the round of --max-num-seqs sequences for these GPUs, without one: needs the "
        "extra rocm",
    )
    _add_models(parser.add_argument_group("models"))
    add_hub_flags(parser, draft=True)
    _add_devices(parser.add_argument_group("devices"))
    _add_load(parser.add_argument_group("load"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write everything there as JSON")
    output.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw a figure there, .png or .svg"
    )
    return parser


def read_options(flags: argparse.Namespace) -> PlanOptions:
    """Parse and check the flags. Raises ValueError, naming the flag, for invalid values."""
    if flags.model is None:
        raise ValueError("--model CONFIG_OR_DIR is needed")
    for name in COUNTS:
        if (value := getattr(flags, name)) is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
    if not 0 < flags.gpu_memory_utilization <= 1:
        raise ValueError("--gpu-memory-utilization must be above 0 and at most 1")
    if not 0 < flags.kv_offloading_size < math.inf:
        raise ValueError("--kv-offloading-size must be above 0, in GiB")
    if min(flags.concurrency) < 1:
        raise ValueError("--concurrency must be 1 or more each time")
    if not 0 <= flags.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
        raise ValueError(f"--num-speculative-tokens must be 0..{MAX_SPECULATIVE_TOKENS}")
    least = max(1, flags.num_speculative_tokens)
    if flags.num_lookup_tokens and not least <= flags.num_lookup_tokens <= MAX_LOOKUP_TOKENS:
        raise ValueError(
            f"--num-lookup-tokens must be 0 or {least}..{MAX_LOOKUP_TOKENS}, at least "
            f"--num-speculative-tokens; got {flags.num_lookup_tokens}"
        )
    gpu = BY_ARCH[flags.arch] if flags.arch else flags.gpu
    if flags.compile and GPUS[gpu].arch not in BY_ARCH:
        raise ValueError(f"--compile is for AMD's GPUs, with XLA's ROCm compiler; got --gpu {gpu}")
    concurrency = tuple(sorted(set(flags.concurrency)))
    return PlanOptions(
        model=source_of(flags, flags.model, flags.revision),
        draft=source_of(flags, flags.draft, flags.draft_revision) if flags.draft else None,
        language_model_only=flags.language_model_only,
        gpu=gpu,
        parallel=_parallelism(flags),
        kv_cache_dtype="fp8" if flags.kv_cache_dtype.startswith("fp8") else "bfloat16",
        gpu_memory_utilization=flags.gpu_memory_utilization,
        max_model_len=flags.max_model_len or flags.isl + flags.osl,
        max_num_seqs=flags.max_num_seqs or concurrency[-1],
        page_size=flags.block_size,
        isl=flags.isl,
        osl=flags.osl,
        concurrency=concurrency,
        num_speculative_tokens=flags.num_speculative_tokens,
        accept_lengths=_accept_lengths(flags),
        kv_offloading_bytes=int(flags.kv_offloading_size * GIB),
        num_lookup_tokens=flags.num_lookup_tokens,
    )


def _parallelism(flags: argparse.Namespace) -> Parallelism:
    devices, draft = flags.tensor_parallel_size, flags.draft_tensor_parallel_size
    if draft not in (None, 1, devices):
        raise ValueError(
            f"--draft-tensor-parallel-size must be 1 or --tensor-parallel-size {devices}; "
            f"got {draft}"
        )
    if devices % (parts := flags.decode_context_parallel_size):
        raise ValueError(
            f"--decode-context-parallel-size must divide --tensor-parallel-size {devices}; "
            f"got {parts}"
        )
    return Parallelism(devices, draft or devices, flags.enable_expert_parallel, parts)


def _accept_lengths(flags: argparse.Namespace) -> tuple[float, ...]:
    given, k = flags.acceptance, flags.num_speculative_tokens
    lengths = ACCEPT_LENGTHS if given is None else accept_lengths(given)
    if len(lengths) <= k:
        raise ValueError(
            f"--acceptance must have {k} probabilities, one for each position; "
            f"got {len(lengths) - 1}"
        )
    return lengths


def _add_models(group: argparse._ArgumentGroup) -> None:
    both = "config.json as published, or a directory or hub id with one"
    group.add_argument("--model", metavar="CONFIG_OR_DIR", help=f"target: {both}")
    group.add_argument(
        "--draft",
        metavar="CONFIG_OR_DIR",
        help="draft: config.json as published, or a directory or hub id with one",
    )
    group.add_argument(
        "--language-model-only",
        action="store_true",
        help="leave out the target's vision tower",
    )


def _add_devices(group: argparse._ArgumentGroup) -> None:
    count = partial(group.add_argument, type=int, metavar="N")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument("--gpu", choices=tuple(GPUS), default="MI355X", help="kind of the GPUs")
    kind.add_argument(
        "--arch",
        choices=tuple(BY_ARCH),
        help="in place of --gpu: MI355X (gfx950) or MI325X (gfx942)",
    )
    count("--tensor-parallel-size", "-tp", "--tp", default=1, help="number of GPUs")
    group.add_argument(
        "--enable-expert-parallel", action="store_true", help="whole experts on each GPU"
    )
    add_options(group, NoReplicas)
    count("--draft-tensor-parallel-size", help="1 or all GPUs; default: all")
    count(
        "--decode-context-parallel-size",
        "-dcp",
        default=1,
        help="neighbouring GPUs that divide a context of MLA latents; default: 1",
    )
    add_options(group, ParallelOptions, "kv_cache_interleave_size")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        default=0.9,
        metavar="X",
        help="share of the memory for weights, state and KV; default: 0.9",
    )
    group.add_argument(
        "--kv-cache-dtype",
        choices=("auto", "bfloat16", "fp8", "fp8_e4m3"),
        default="auto",
        help="auto: bfloat16, as the model computes",
    )
    group.add_argument(
        "--kv-offloading-size",
        type=float,
        default=2048.0,
        metavar="GIB",
        help="host memory for pages that the KV cache has no room for; default: 2048",
    )
    count("--block-size", "--page-size", default=16, help="tokens a cache page holds; default: 16")


def _add_load(group: argparse._ArgumentGroup) -> None:
    count = partial(group.add_argument, type=int, metavar="N")
    count("--isl", default=1024, help="tokens of a prompt; default: 1024")
    count("--osl", default=1024, help="tokens of an answer; default: 1024")
    group.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[4, 8, 16, 32, 64],
        metavar="C",
        help="requests decoded together",
    )
    count(
        "--max-model-len", "--context-length", help="tokens of prompt + answer; default: isl + osl"
    )
    count(
        "--max-num-seqs",
        "--max-running-requests",
        help="requests decoded together; default: the largest concurrency",
    )
    count("--num-speculative-tokens", default=3, help="drafts a round; default: 3")
    count(
        "--num-lookup-tokens",
        default=0,
        help="tokens that may be looked up as drafts; default: 0, no lookup",
    )
    group.add_argument(
        "--acceptance",
        type=_probabilities,
        metavar="P,P,…",
        help="probabilities that the first 1, 2, … drafts are all accepted; default: the golden "
        "figures of InferenceX",
    )


def _probabilities(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must look like 0.8,0.6,0.4; got {text}") from None
