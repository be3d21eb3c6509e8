"""The options of eagle3-serve as values, read from its flags and checked."""

import argparse
from dataclasses import dataclass
from typing import Literal, get_args

from eagle3_jax.engine.config import EngineConfig
from serve.options.chat import ChatOptions, read_chat_options
from serve.options.checkpoint import LoadOptions, read_load_options
from serve.options.engine import read_engine_config
from serve.options.hosts import HostOptions, read_host_options
from serve.options.memory import MemoryShare, read_memory_share
from serve.options.operations import Operations, read_operation_options
from serve.options.parallel import ParallelOptions, read_parallel_options
from serve.options.speculation import Speculation, read_speculation

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
SpecMetricsLevel = Literal["none", "summary", "detailed"]
"""How much responses say about speculation (serve.openai.answers.spec_metrics)."""
SPEC_METRICS_LEVELS: tuple[SpecMetricsLevel, ...] = get_args(SpecMetricsLevel)


@dataclass(frozen=True)
class ServeOptions:
    """The command line as values. max_model_len: the engine's, None where the model decides."""

    model: str | None
    demo: bool
    speculation: Speculation
    engine: EngineConfig
    max_model_len: int | None
    load: LoadOptions
    parallel: ParallelOptions
    chat: ChatOptions
    hosts: HostOptions | None
    served_model_name: tuple[str, ...]
    host: str
    port: int
    drain_timeout_s: float
    operations: Operations
    memory: MemoryShare | None
    generation_config: str
    generation_overrides: str | None
    logprobs_mode: str
    seed: int | None
    spec_metrics: SpecMetricsLevel


def check_options(flags: argparse.Namespace) -> ServeOptions:
    """Raises ValueError, naming the flag, for what can't be served."""
    model = flags.model_positional or flags.model
    if bool(model) == flags.demo:
        raise ValueError("give one of MODEL, a checkpoint directory, and --demo")
    if not 0 <= flags.port <= 65535:
        raise ValueError(f"--port must be in 0..65535; got {flags.port}")
    if flags.drain_timeout < 0:
        raise ValueError(f"--drain-timeout must be 0 or more; got {flags.drain_timeout}")
    speculation = read_speculation(flags)
    engine = read_engine_config(flags, speculation)
    proposes = bool(flags.demo or speculation.draft) and engine.num_speculative_tokens > 0
    hosts = read_host_options(flags)
    return ServeOptions(
        model=model,
        demo=flags.demo,
        speculation=speculation,
        engine=engine,
        max_model_len=flags.max_model_len,
        load=read_load_options(flags, has_draft=proposes),
        parallel=read_parallel_options(flags, speculation.draft_tensor_parallel_size),
        chat=read_chat_options(flags),
        hosts=hosts,
        served_model_name=tuple(flags.served_model_name),
        host=flags.host,
        port=flags.port,
        drain_timeout_s=flags.drain_timeout,
        operations=read_operation_options(flags),
        memory=read_memory_share(flags, several_hosts=hosts is not None),
        generation_config="vllm"
        if flags.sampling_defaults == "openai"
        else flags.generation_config,
        generation_overrides=flags.override_generation_config,
        logprobs_mode=flags.logprobs_mode,
        seed=flags.seed,
        spec_metrics=flags.per_request_spec_decode_metrics,
    )
