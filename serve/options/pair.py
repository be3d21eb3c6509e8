"""Options of commands that run a pair: its checkpoints, loading, and engine."""

import argparse
from dataclasses import dataclass
from typing import Any

from convert.command_line.options import COUNT, add_options, option
from convert.hub.source import Source, add_hub_flags, source_of
from eagle3_jax.engine.config import EngineConfig
from serve.options.checkpoint import LoadOptions, read_load_options
from serve.options.engine import add_engine_flags, read_engine_config
from serve.options.memory import MemoryShare, OffloadingFlags, ShareFlags, read_memory_share
from serve.options.parallel import ParallelOptions, add_parallel_flags, read_parallel_options
from serve.options.speculation import Speculation, read_speculation

DEMO, DEMO_VISION = "eagle3-demo", "eagle3-demo-vision"
"""Names of the embedded pairs for text and for images, as clients see them."""


@dataclass(frozen=True)
class ModelFlags:
    """The model, as an argument or as --model, since other engines have both forms."""

    model_positional: str | None = option("MODEL", "checkpoint directory, or hub id", nargs="?")
    model: str | None = option("--model, --model-path MODEL", "the same as MODEL")
    demo: str = option(
        "--demo", "use the small embedded model pair", default="", action="store_const", const=DEMO
    )
    demo_vision: str = option(
        "--demo-vision",
        "use the small embedded pair that takes images; it knows pictures of shapes",
        default=argparse.SUPPRESS,
        action="store_const",
        const=DEMO_VISION,
        dest="demo",
    )


@dataclass(frozen=True)
class TokenizerFlags:
    """The tokenizer, if it is not the model's."""

    tokenizer: str | None = option(
        "--tokenizer, --tokenizer-path MODEL",
        "source of tokenizer and chat template; default: the model",
    )
    tokenizer_revision: str | None = option(
        "--tokenizer-revision REV", "branch, tag or commit of the tokenizer, if it is a hub id"
    )


@dataclass(frozen=True)
class CpuFlags:
    """Options of engines on a CPU."""

    cpu_threads: int | None = option(
        "--cpu-threads N",
        "threads that compute on a CPU; default: one for each core that the process may use",
        COUNT,
    )


@dataclass(frozen=True)
class PairSources:
    """The sources of a pair; no target means an embedded pair, no tokenizer the target's."""

    target: Source | None = None
    draft: Source | None = None
    tokenizer: Source | None = None


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """Options of a pair and its engine; `model` is None for an embedded pair, which `demo` names.

    `max_model_len` is the engine's, None if the model or the prompts decide.
    """

    model: str | None
    demo: str
    sources: PairSources
    speculation: Speculation
    engine: EngineConfig
    max_model_len: int | None
    load: LoadOptions
    parallel: ParallelOptions
    memory: MemoryShare | None
    cpu_threads: int | None = None


def add_tokenizer_flags(parser: argparse.ArgumentParser) -> None:
    """Add the options of the tokenizer as a group."""
    add_options(parser.add_argument_group("tokenizer"), TokenizerFlags)


def add_pair_flags(parser: argparse.ArgumentParser, *, keys: bool = False) -> None:
    """Add the groups of a pair and its engine; `keys` as in `add_speculation_flags`."""
    add_hub_flags(parser)
    add_tokenizer_flags(parser)
    add_engine_flags(parser, keys=keys)
    add_options(parser.add_argument_group("CPU"), CpuFlags)
    memory = parser.add_argument_group("memory")
    add_options(memory, ShareFlags)
    add_options(memory, OffloadingFlags)
    add_options(parser.add_argument_group("loading"), LoadOptions)
    add_parallel_flags(parser, data=True)


def read_pair_options(flags: argparse.Namespace, *, several_hosts: bool = False) -> dict[str, Any]:
    """Return the fields of PairOptions; ValueError, naming the flag, for unusable values."""
    model = _model(flags)
    speculation = read_speculation(flags)
    engine = read_engine_config(flags, speculation)
    proposes = bool(flags.demo or speculation.draft) and engine.num_speculative_tokens > 0
    return {
        "model": model,
        "demo": flags.demo,
        "sources": _read_sources(flags, model, speculation),
        "speculation": speculation,
        "engine": engine,
        "max_model_len": flags.max_model_len,
        "load": read_load_options(flags, has_draft=proposes),
        "parallel": read_parallel_options(flags, speculation.draft_tensor_parallel_size),
        "memory": read_memory_share(flags, several_hosts=several_hosts),
        "cpu_threads": flags.cpu_threads,
    }


def _model(flags: argparse.Namespace) -> str | None:
    """Return the model; ValueError for two, unless one is from --config, which is overridden."""
    first, second = flags.model_positional, flags.model
    if first and second and first != second and not getattr(flags, "config", None):
        raise ValueError(f"two models are named: {first} and --model {second}")
    model = first or second
    if bool(model) == bool(flags.demo):
        raise ValueError("give one of MODEL, a checkpoint directory or hub id, and --demo")
    return model


def _read_sources(
    flags: argparse.Namespace, model: str | None, speculation: Speculation
) -> PairSources:
    """Read the sources; ValueError for a revision of a source that has none."""
    if flags.revision and not model:
        raise ValueError("--revision belongs to a hub id; --demo has no revisions")
    draft = speculation.draft
    return PairSources(
        source_of(flags, model, flags.revision) if model else None,
        source_of(flags, draft, speculation.revision) if draft else None,
        tokenizer_source(flags),
    )


def tokenizer_source(flags: argparse.Namespace) -> Source | None:
    """Return the requested tokenizer's source; ValueError for a revision without one."""
    if flags.tokenizer:
        return source_of(flags, flags.tokenizer, flags.tokenizer_revision)
    if flags.tokenizer_revision:
        raise ValueError("--tokenizer-revision belongs to --tokenizer; the model's is --revision")
    return None
