"""Flags of eagle3-plan and their values, read before anything imports JAX."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from convert.command_line.options import COUNT, COUNT_OR_0, SHARE, add_options, number, option
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.hub.source import Source, add_hub_flags, source_of
from eagle3_jax.engine.config import MAX_LOOKUP_TOKENS, MAX_SPECULATIVE_TOKENS
from eagle3_tools.plan.data.gpus import GIB, GPUS
from eagle3_tools.plan.model.acceptance import ACCEPT_LENGTHS, accept_lengths
from eagle3_tools.plan.model.parallel import Parallelism
from serve.options.parallel import add_parallel_flags, read_parallel_options

PROG = "eagle3-plan"
BY_ARCH = {"gfx950": "MI355X", "gfx942": "MI325X"}
CONFIG = "config.json as published, or a directory or hub id with one"


def _probabilities(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must look like 0.8,0.6,0.4; got {text}") from None


@dataclass(frozen=True)
class ActionFlags:
    """Other things to do than a plan."""

    constants: bool = option(
        "--constants", "print the constants that are assumed of each GPU, and exit"
    )
    kernels: str | None = option(
        "--kernels TEXT",
        "print what the model of the compiled code says of our kernels (of cases with TEXT in "
        "their name) and of whole rounds, and leave",
        nargs="?",
        const="",
    )
    before: Path | None = option(
        "--before FOLDER",
        "with --kernels: print what changed since the record of that folder",
        Path,
    )
    compile: bool = option(
        "--compile",
        "compile the round of --max-num-seqs sequences for these GPUs, without one: needs the "
        "extra rocm",
    )


@dataclass(frozen=True)
class ModelFlags:
    """The pair."""

    model: str | None = option("--model CONFIG_OR_DIR", f"target: {CONFIG}")
    draft: str | None = option("--draft CONFIG_OR_DIR", f"draft: {CONFIG}")
    language_model_only: bool = option(
        "--language-model-only", "leave out the target's vision tower"
    )


@dataclass(frozen=True)
class GpuFlags:
    """The kind of the GPUs; one of both."""

    gpu: str = option("--gpu", "kind of the GPUs", default="MI355X", choices=tuple(GPUS))
    arch: str | None = option(
        "--arch",
        "in place of --gpu: MI355X (gfx950) or MI325X (gfx942)",
        choices=tuple(BY_ARCH),
    )


@dataclass(frozen=True)
class DeviceFlags:
    """Contents of a device."""

    draft_tensor_parallel_size: int | None = option(
        "--draft-tensor-parallel-size N", "1 or all GPUs; default: all", COUNT
    )
    gpu_memory_utilization: float = option(
        "--gpu-memory-utilization X",
        "share of the memory for weights, state and KV",
        SHARE,
        default=0.9,
    )
    kv_cache_dtype: str = option(
        "--kv-cache-dtype",
        "auto: bfloat16, as the model computes",
        default="auto",
        choices=("auto", "bfloat16", "fp8", "fp8_e4m3"),
    )
    kv_offloading_bytes: int = option(
        "--kv-offloading-size GIB",
        "host memory for pages that the KV cache has no room for",
        unit=GIB,
        default=2048 * GIB,
    )
    page_size: int = option(
        "--block-size, --page-size N", "tokens a cache page holds", COUNT, default=16
    )


@dataclass(frozen=True)
class LoadFlags:
    """Requests that are served."""

    isl: int = option("--isl N", "tokens of a prompt", COUNT, default=1024)
    osl: int = option("--osl N", "tokens of an answer", COUNT, default=1024)
    concurrency: tuple[int, ...] = option(
        "--concurrency C", "requests decoded together", COUNT, default=(4, 8, 16, 32, 64), nargs="+"
    )
    max_model_len: int | None = option(
        "--max-model-len, --context-length N",
        "tokens of prompt + answer; default: isl + osl",
        COUNT,
    )
    max_num_seqs: int | None = option(
        "--max-num-seqs, --max-running-requests N",
        "requests decoded together; default: the largest concurrency",
        COUNT,
    )
    num_speculative_tokens: int = option(
        "--num-speculative-tokens N",
        "drafts a round",
        number(
            int, f"0..{MAX_SPECULATIVE_TOKENS}", lambda count: 0 <= count <= MAX_SPECULATIVE_TOKENS
        ),
        default=3,
    )
    num_lookup_tokens: int = option(
        "--num-lookup-tokens N",
        "tokens that may be looked up as drafts; default: 0, no lookup",
        COUNT_OR_0,
        default=0,
    )
    acceptance: tuple[float, ...] | None = option(
        "--acceptance P,P,…",
        "probabilities that the first 1, 2, … drafts are all accepted; default: the golden "
        "figures of InferenceX",
        _probabilities,
    )


@dataclass(frozen=True)
class OutputFlags:
    """Files of the plan."""

    json: Path | None = option("--json FILE", "write everything there as JSON", Path)
    plot: Path | None = option("--plot FILE", "draw a figure there, .png or .svg", Path)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Parsed command line. isl, osl: tokens of a prompt and of its answer.

    accept_lengths: for k = 0, 1, … language_model_only: without the vision tower.
    """

    model: Source
    draft: Source | None
    language_model_only: bool
    gpu: str
    parallel: Parallelism
    kv_cache_dtype: str = "bfloat16"
    gpu_memory_utilization: float = 0.9
    max_model_len: int
    max_num_seqs: int = 1
    page_size: int = 16
    isl: int
    osl: int
    concurrency: tuple[int, ...] = (1,)
    num_speculative_tokens: int = 0
    accept_lengths: tuple[float, ...] = (1.0,)
    kv_offloading_bytes: int = 0
    num_lookup_tokens: int = 0

    @property
    def context(self) -> float:
        """Mean KV tokens of a sequence while it is decoded."""
        return self.isl + self.osl / 2


def build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog=PROG,
        description="What a pair of models needs on GPUs, and what it could do there: arithmetic "
        "from config.json, or with --compile its round at full size through XLA's ROCm compiler. "
        "Both are explained in docs/planner.md.",
        example="eagle3-plan --model /models/Kimi-K2.5-MXFP4 --draft /models/kimi-k2.5-eagle3-fp8 "
        "--gpu MI355X -tp 4 --isl 1024 --osl 1024",
    )
    add_about_flags(parser)
    add_options(parser, ActionFlags)
    add_options(parser.add_argument_group("models"), ModelFlags)
    add_hub_flags(parser, draft=True)
    add_parallel_flags(parser)
    devices = parser.add_argument_group("devices")
    add_options(devices.add_mutually_exclusive_group(), GpuFlags)
    add_options(devices, DeviceFlags)
    add_options(parser.add_argument_group("load"), LoadFlags)
    add_options(parser.add_argument_group("output"), OutputFlags)
    return parser


def read_options(flags: argparse.Namespace) -> PlanOptions:
    """Check the flags together. Raises ValueError, naming the flag, for contradictions."""
    if flags.model is None:
        raise ValueError("--model CONFIG_OR_DIR is needed")
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
    read = {
        "model": source_of(flags, flags.model, flags.revision),
        "draft": source_of(flags, flags.draft, flags.draft_revision) if flags.draft else None,
        "gpu": gpu,
        "parallel": _parallelism(flags),
        "kv_cache_dtype": "fp8" if flags.kv_cache_dtype.startswith("fp8") else "bfloat16",
        "max_model_len": flags.max_model_len or flags.isl + flags.osl,
        "max_num_seqs": flags.max_num_seqs or concurrency[-1],
        "concurrency": concurrency,
        "accept_lengths": _accept_lengths(flags),
    }
    given: dict[str, Any] = {
        row.name: getattr(flags, row.name, None) for row in fields(PlanOptions)
    }
    return PlanOptions(**given | read)


def _parallelism(flags: argparse.Namespace) -> Parallelism:
    read = read_parallel_options(flags, flags.draft_tensor_parallel_size)
    return Parallelism(
        read.tensor_parallel_size,
        read.draft_tensor_parallel_size,
        read.enable_expert_parallel,
        flags.decode_context_parallel_size,
    )


def _accept_lengths(flags: argparse.Namespace) -> tuple[float, ...]:
    given, k = flags.acceptance, flags.num_speculative_tokens
    lengths = ACCEPT_LENGTHS if given is None else accept_lengths(given)
    if len(lengths) <= k:
        raise ValueError(
            f"--acceptance must have {k} probabilities, one for each position; "
            f"got {len(lengths) - 1}"
        )
    return lengths
