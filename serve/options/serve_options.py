"""The options of eagle3-serve as values, read from its flags and checked."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from convert.command_line.options import POSITIVE_OR_0, number, option, values_of
from eagle3_jax.sampling.params import LOGPROBS_MODES
from serve.images.options import ImageOptions, read_image_options
from serve.kv_transfer.config import (
    CONFIG_FLAG,
    DEFAULT_BYTES,
    KEY_FLAG,
    ROLE_FLAG,
    ROLES,
    KVTransferConfig,
    read_kv_transfer_config,
)
from serve.options.chat import ChatOptions
from serve.options.hosts import HostOptions, read_host_options, read_key
from serve.options.http import HttpOptions, read_http_options
from serve.options.operations import Operations, read_operation_options
from serve.options.pair import PairOptions, read_pair_options
from serve.options.ray import RayOptions, read_ray_options

SpecMetricsLevel = Literal["none", "summary", "detailed"]
"""Detail of speculation metrics in responses (serve.openai.spec_metrics)."""
UNMEASURED = "1"
"""vLLM's factor of an unmeasured fp8 cache, which published command lines rely on."""
PORT = number(int, "in 0..65535", lambda port: 0 <= port <= 65535)


@dataclass(frozen=True)
class DefaultsFlags:
    """The sampling options of requests that set none."""

    generation_config: str = option(
        "--generation-config auto|vllm|MODEL",
        "source of sampling defaults: the checkpoint (auto), none (vllm) or another checkpoint",
        default="auto",
    )
    generation_overrides: str | None = option(
        "--override-generation-config JSON", "defaults that override --generation-config"
    )
    sampling_defaults: str | None = option(
        "--sampling-defaults",
        "SGLang's name: openai means --generation-config vllm, model means auto",
        choices=("model", "openai"),
    )


@dataclass(frozen=True)
class TransferFlags:
    """Transfer of pages between servers."""

    kv_role: str | None = option(
        ROLE_FLAG,
        "producer: keep pages of prompts for other servers; consumer: fetch pages from "
        "producers; both",
        choices=ROLES,
    )
    kv_transfer_config: str | None = option(
        f"{CONFIG_FLAG} JSON",
        "vLLM's: kv_role, engine_id, kv_ip, kv_port, kv_connector_extra_config {producers, "
        "expiry_s, pull_timeout_s}",
    )
    kv_transfer_key_file: Path | None = option(
        f"{KEY_FLAG} FILE",
        "the key that producers and consumers share, of mode 0600, made as for "
        "--hosts-key-file; needed beyond loopback addresses",
        Path,
    )


@dataclass(frozen=True, kw_only=True)
class ServeOptions(PairOptions):
    """The command line as values."""

    chat: ChatOptions
    images: ImageOptions
    hosts: HostOptions | None
    ray: RayOptions | None
    http: HttpOptions
    operations: Operations
    kv_transfer: KVTransferConfig | None
    generation_config: str
    generation_overrides: str | None
    served_model_name: tuple[str, ...] = option(
        "--served-model-name NAME", "names of the model for clients", default=(), nargs="+"
    )
    host: str = option(
        "--host HOST", "address to listen on; 0.0.0.0: all of the machine's", default="127.0.0.1"
    )
    port: int = option(
        "--port, --server-port PORT", "port to listen on; 0: any free port", PORT, default=8000
    )
    drain_timeout_s: float = option(
        "--drain-timeout SECONDS",
        "time for answers to end after SIGTERM or Ctrl-C",
        POSITIVE_OR_0,
        default=30.0,
    )
    spec_metrics: SpecMetricsLevel = option(
        "--per-request-spec-decode-metrics",
        "content of metrics.speculative_decoding in responses",
        default="none",
        choices=get_args(SpecMetricsLevel),
    )
    logprobs_mode: str = option(
        "--logprobs-mode",
        "log-probabilities of the model's own logits, or after all options",
        default=LOGPROBS_MODES[0],
        choices=LOGPROBS_MODES,
    )
    seed: int | None = option(
        "--seed, --random-seed N",
        "makes the seeds of unseeded requests repeatable; default: they are random",
        int,
    )


def check_options(flags: argparse.Namespace) -> ServeOptions:
    """Read all options; ValueError, naming the flag, for values that cannot be served."""
    if flags.kv_cache_dtype.startswith("fp8") and flags.kv_cache_scale is None:
        flags.kv_cache_scale = UNMEASURED
    ray = read_ray_options(flags, flags.tensor_parallel_size * flags.data_parallel_size)
    hosts = None if ray else read_host_options(flags)
    several = hosts is not None or ray is not None
    transfer = _read_kv_transfer(flags, several_hosts=several)
    without = flags.sampling_defaults == "openai"
    return ServeOptions(
        **read_pair_options(flags, several_hosts=several),
        **values_of(ServeOptions, flags),
        chat=ChatOptions(**values_of(ChatOptions, flags)),
        images=read_image_options(flags),
        hosts=hosts,
        ray=ray,
        http=read_http_options(flags),
        operations=read_operation_options(flags),
        kv_transfer=transfer,
        generation_config="vllm" if without else flags.generation_config,
        generation_overrides=flags.generation_overrides,
    )


def _read_kv_transfer(flags: argparse.Namespace, *, several_hosts: bool) -> KVTransferConfig | None:
    """Read the transfer flags; set a default size of host memory, which transfers need."""
    path = flags.kv_transfer_key_file
    key = b"" if path is None else read_key(path, KEY_FLAG)
    config = read_kv_transfer_config(flags.kv_role, flags.kv_transfer_config, key)
    if config is None:
        return None
    if several_hosts:
        raise ValueError(
            f"{ROLE_FLAG} needs an engine of one process: leave the flags of several hosts out"
        )
    if flags.data_parallel_size > 1:
        raise ValueError(f"{ROLE_FLAG}: replicas transfer no pages; --data-parallel-size must be 1")
    if not flags.enable_prefix_caching:
        raise ValueError(f"{ROLE_FLAG} moves pages of the prefix cache, which is off")
    if flags.kv_offloading_bytes is None:
        flags.kv_offloading_bytes = DEFAULT_BYTES
    return config
