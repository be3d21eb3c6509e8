"""The options of eagle3-serve as values, read from its flags and checked."""

import argparse
from dataclasses import dataclass
from typing import Literal, get_args

from serve.images.options import ImageOptions, read_image_options
from serve.kv_transfer.config import (
    DEFAULT_BYTES,
    KEY_FLAG,
    ROLE_FLAG,
    KVTransferConfig,
    read_kv_transfer_config,
)
from serve.options.chat import ChatOptions, read_chat_options
from serve.options.executor.ray import RayOptions, read_ray_options
from serve.options.hosts import HostOptions, read_host_options, read_key
from serve.options.http import HttpOptions, read_http_options
from serve.options.operations import Operations, read_operation_options
from serve.options.pair import PairOptions, read_pair_options
from serve.options.sources import model_of

SpecMetricsLevel = Literal["none", "summary", "detailed"]
"""Detail of speculation metrics in responses (serve.openai.spec_metrics)."""
UNMEASURED = "1"
"""vLLM's factor of an unmeasured fp8 cache, which published command lines rely on."""
SPEC_METRICS_LEVELS: tuple[SpecMetricsLevel, ...] = get_args(SpecMetricsLevel)


@dataclass(frozen=True, kw_only=True)
class ServeOptions(PairOptions):
    """The command line as values."""

    chat: ChatOptions
    images: ImageOptions
    hosts: HostOptions | None
    ray: RayOptions | None
    served_model_name: tuple[str, ...]
    host: str
    port: int
    http: HttpOptions
    drain_timeout_s: float
    operations: Operations
    generation_config: str
    generation_overrides: str | None
    logprobs_mode: str
    seed: int | None
    spec_metrics: SpecMetricsLevel
    kv_transfer: KVTransferConfig | None


def check_options(flags: argparse.Namespace) -> ServeOptions:
    """Read all options; ValueError, naming the flag, for values that cannot be served."""
    if not 0 <= flags.port <= 65535:
        raise ValueError(f"--port must be in 0..65535; got {flags.port}")
    if flags.drain_timeout < 0:
        raise ValueError(f"--drain-timeout must be 0 or more; got {flags.drain_timeout}")
    if flags.kv_cache_dtype.startswith("fp8") and flags.kv_cache_scale is None:
        flags.kv_cache_scale = UNMEASURED
    ray = read_ray_options(flags, flags.tensor_parallel_size * flags.data_parallel_size)
    hosts = None if ray else read_host_options(flags)
    several = hosts is not None or ray is not None
    transfer = _read_kv_transfer(flags, several_hosts=several)
    return ServeOptions(
        **read_pair_options(flags, model_of(flags), several_hosts=several),
        chat=read_chat_options(flags),
        images=read_image_options(flags),
        hosts=hosts,
        ray=ray,
        served_model_name=tuple(flags.served_model_name),
        host=flags.host,
        port=flags.port,
        http=read_http_options(flags),
        drain_timeout_s=flags.drain_timeout,
        operations=read_operation_options(flags),
        generation_config="vllm"
        if flags.sampling_defaults == "openai"
        else flags.generation_config,
        generation_overrides=flags.override_generation_config,
        logprobs_mode=flags.logprobs_mode,
        seed=flags.seed,
        spec_metrics=flags.per_request_spec_decode_metrics,
        kv_transfer=transfer,
    )


def _read_kv_transfer(flags: argparse.Namespace, *, several_hosts: bool) -> KVTransferConfig | None:
    """Read the transfer flags; set a default size of host memory, which transfers need."""
    path = flags.kv_transfer_key_file
    key = b"" if path is None else read_key(path, KEY_FLAG)
    config = read_kv_transfer_config(flags.kv_role, flags.kv_transfer_config, key)
    if config is None:
        return None
    if several_hosts:
        raise ValueError(f"{ROLE_FLAG}: several processes as one engine transfer no pages yet")
    if flags.data_parallel_size > 1:
        raise ValueError(f"{ROLE_FLAG}: replicas transfer no pages; --data-parallel-size must be 1")
    if not flags.enable_prefix_caching:
        raise ValueError(f"{ROLE_FLAG} moves pages of the prefix cache, which is off")
    if flags.kv_offloading_bytes is None:
        flags.kv_offloading_bytes = DEFAULT_BYTES
    return config
