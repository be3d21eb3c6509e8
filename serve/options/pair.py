"""Options of commands that run a pair: its checkpoints, loading, and engine."""

import argparse
from dataclasses import dataclass
from typing import Any

from eagle3_jax.engine.config import EngineConfig
from serve.options.checkpoint import LoadOptions, add_load_flags, read_load_options
from serve.options.engine import add_engine_flags, read_engine_config
from serve.options.memory import MemoryShare, add_memory_flags, read_memory_share
from serve.options.parallel import ParallelOptions, add_parallel_flags, read_parallel_options
from serve.options.sources import PairSources, add_source_flags, read_sources
from serve.options.speculation import Speculation, read_speculation

DEMO, DEMO_VISION = "eagle3-demo", "eagle3-demo-vision"
"""Names of the embedded pairs for text and for images, as clients see them."""


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


def add_demo_flags(parser: Any) -> None:
    """Add --demo and --demo-vision to a parser or group; both set `demo`, else it is empty."""
    add = parser.add_argument
    add("--demo", action="store_const", const=DEMO, default="", help="the embedded pair")
    add(
        "--demo-vision",
        action="store_const",
        const=DEMO_VISION,
        dest="demo",
        default=argparse.SUPPRESS,
        help="the embedded pair that sees pictures of shapes",
    )


def add_pair_flags(parser: argparse.ArgumentParser, *, keys: bool = False) -> None:
    """Add the groups of a pair and its engine; `keys` as in `add_speculation_flags`."""
    add_source_flags(parser)
    add_engine_flags(parser, keys=keys)
    add_memory_flags(parser)
    add_load_flags(parser)
    add_parallel_flags(parser, data=True)


def read_pair_options(
    flags: argparse.Namespace, model: str | None, *, several_hosts: bool = False
) -> dict[str, Any]:
    """Return the fields of PairOptions; ValueError, naming the flag, for unusable values."""
    if bool(model) == bool(flags.demo):
        raise ValueError("give one of MODEL, a checkpoint directory or hub id, and --demo")
    speculation = read_speculation(flags)
    engine = read_engine_config(flags, speculation)
    proposes = bool(flags.demo or speculation.draft) and engine.num_speculative_tokens > 0
    return {
        "model": model,
        "demo": flags.demo,
        "sources": read_sources(flags, model, speculation),
        "speculation": speculation,
        "engine": engine,
        "max_model_len": flags.max_model_len,
        "load": read_load_options(flags, has_draft=proposes),
        "parallel": read_parallel_options(flags, speculation.draft_tensor_parallel_size),
        "memory": read_memory_share(flags, several_hosts=several_hosts),
    }
