"""Options for operating a server: API keys, limits, timeouts, logs, traces."""

import argparse
import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from convert.command_line.options import COUNT, POSITIVE, option, values_of
from serve.kv_events.config import FLAG, KVEventsConfig, read_kv_events_config

MIB = 2**20
KEY_VARIABLE = "VLLM_API_KEY"
LogFormat = Literal["text", "json"]


def _key(text: str) -> str:
    if not (text.isascii() and text.isprintable() and text.strip() == text != ""):
        raise argparse.ArgumentTypeError("a key is printable ASCII without spaces around it")
    return text


@dataclass(frozen=True)
class Operations:
    """Options for operating the server; without `api_keys` any client may send requests."""

    api_keys: tuple[str, ...] = option(
        "--api-key KEY",
        f"clients must send one of these keys as bearer token (or set {KEY_VARIABLE})",
        _key,
        default=(),
        nargs="+",
    )
    admin_api_key: str | None = option(
        "--admin-api-key KEY",
        "key of clients that may also abort all requests, flush the cache and profile",
        _key,
    )
    max_body_bytes: int = option(
        "--max-body-size MIB",
        "refuse larger bodies (in MiB) with status 413",
        default=16 * MIB,
        unit=MIB,
    )
    max_queued: int = option(
        "--max-num-queued-reqs N",
        "running and waiting sequences; refuse more with status 429",
        COUNT,
        default=4096,
    )
    client_timeout_s: float = option(
        "--client-timeout SECONDS",
        "longest time to send a request, and to read nothing of an answer",
        POSITIVE,
        default=60.0,
    )
    watchdog_timeout_s: float = option(
        "--watchdog-timeout SECONDS",
        "end the process with status 1 if an engine step takes longer",
        POSITIVE,
        default=300.0,
    )
    log_format: LogFormat = option(
        "--log-format", "form of each log line", default="text", choices=get_args(LogFormat)
    )
    log_each_request: bool = option(
        "--disable-uvicorn-access-log",
        "write no log line for each request",
        default=True,
        action="store_false",
    )
    log_prompts: bool = option(
        "--enable-log-requests", "write prompts too in the log lines of requests"
    )
    otlp_endpoint: str | None = option(
        "--otlp-traces-endpoint URL",
        "receiver of a span for each request (OpenTelemetry over HTTP, extra otel)",
    )
    profile_dir: Path | None = option(
        "--profile-dir DIR",
        "directory of the traces that clients start with /start_profile; default: none",
        Path,
    )
    kv_events: KVEventsConfig | None = option(
        f"{FLAG} JSON",
        "tell routers what the prefix cache holds (vLLM's KV events, extra kv-events)",
    )


def read_operation_options(flags: argparse.Namespace) -> Operations:
    """Read the table; ValueError, naming the flag, for values that contradict each other."""
    given = values_of(Operations, flags)
    if not flags.api_keys and (key := os.environ.get(KEY_VARIABLE)):
        try:
            given["api_keys"] = (_key(key),)
        except argparse.ArgumentTypeError as error:
            raise ValueError(f"--api-key: {KEY_VARIABLE}: {error}") from None
    if flags.admin_api_key in given["api_keys"]:
        raise ValueError("--admin-api-key must differ from every --api-key; this one is among them")
    if flags.otlp_endpoint and not _otel_is_installed():
        raise ValueError(
            "--otlp-traces-endpoint needs the extra otel: pip install 'eagle3-jax[otel]'"
        )
    given["kv_events"] = _read_kv_events(flags)
    return Operations(**given)


def _read_kv_events(flags: argparse.Namespace) -> KVEventsConfig | None:
    config = read_kv_events_config(flags.kv_events, os.environ)
    if config and not flags.enable_prefix_caching:
        raise ValueError(f"{FLAG} needs the prefix cache: leave --no-enable-prefix-caching out")
    if config and flags.data_parallel_size > 1:
        raise ValueError(f"{FLAG}: events do not name replicas; --data-parallel-size must be 1")
    return config


def _otel_is_installed() -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False
