"""What the flags of eagle3-serve mean, checked before any weight is read."""

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from serve.cache_flags import read_scale
from serve.chat_flags import ChatOptions, read_chat_options
from serve.hosts_flags import HostOptions, read_host_options
from serve.load_flags import LoadOptions, read_load_options
from serve.memory_flags import MemoryShare, read_memory_share
from serve.operation_flags import Operations, read_operation_options
from serve.parallel_flags import ParallelOptions, read_parallel_options
from serve.speculation_flags import Speculation, check_adaptive, read_speculation

if TYPE_CHECKING:
    from eagle3_jax.engine import KVScales

LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs")
SpecMetricsLevel = Literal["none", "summary", "detailed"]
"""How much responses say about speculation (serve.spec_metrics)."""
SPEC_METRICS_LEVELS: tuple[SpecMetricsLevel, ...] = get_args(SpecMetricsLevel)


@dataclass(frozen=True)
class ServeOptions:
    """The command line as values. None means that the model or the engine decides."""

    model: str | None
    demo: bool
    speculation: Speculation
    adaptive: bool
    kv_cache_dtype: str
    kv_cache_scale: "float | KVScales | None"
    kernels: str | None
    load: LoadOptions
    parallel: ParallelOptions
    chat: ChatOptions
    hosts: HostOptions | None
    served_model_name: tuple[str, ...]
    host: str
    port: int
    drain_timeout_s: float
    operations: Operations
    max_model_len: int | None
    max_num_seqs: int | None
    page_size: int | None
    num_pages: int | None
    memory: MemoryShare | None
    generation_config: str
    generation_overrides: str | None
    prefill_chunk: int | None
    exact: bool
    enable_prefix_caching: bool
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
    proposes = bool(flags.demo or speculation.draft) and speculation.num_speculative_tokens > 0
    hosts = read_host_options(flags)
    return ServeOptions(
        model=model,
        demo=flags.demo,
        speculation=speculation,
        adaptive=check_adaptive(flags, speculation, proposes=proposes),
        load=read_load_options(flags, has_draft=proposes),
        parallel=read_parallel_options(flags, speculation.draft_tensor_parallel_size),
        chat=read_chat_options(flags),
        hosts=hosts,
        served_model_name=tuple(flags.served_model_name),
        host=flags.host,
        port=flags.port,
        drain_timeout_s=flags.drain_timeout,
        operations=read_operation_options(flags),
        max_model_len=_positive(flags, "max_model_len"),
        max_num_seqs=_positive(flags, "max_num_seqs"),
        page_size=_positive(flags, "block_size"),
        num_pages=_positive(flags, "num_gpu_blocks_override"),
        memory=read_memory_share(flags, several_hosts=hosts is not None),
        generation_config="vllm"
        if flags.sampling_defaults == "openai"
        else flags.generation_config,
        generation_overrides=flags.override_generation_config,
        prefill_chunk=_positive(flags, "max_num_batched_tokens"),
        exact=flags.exact,
        kv_cache_dtype=flags.kv_cache_dtype.removesuffix("_e4m3"),
        kv_cache_scale=read_scale(flags),
        kernels=None if flags.kernels == "auto" else flags.kernels,
        enable_prefix_caching=flags.enable_prefix_caching,
        logprobs_mode=flags.logprobs_mode,
        seed=flags.seed,
        spec_metrics=flags.per_request_spec_decode_metrics,
    )


def _positive(flags: argparse.Namespace, name: str) -> int | None:
    value = getattr(flags, name)
    if value is not None and value < 1:
        raise ValueError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
    return value
