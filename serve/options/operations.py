"""Flags for operating a server: API keys, limits, timeouts, logs, traces."""

import argparse
import os
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from serve.kv_events.config import FLAG, KVEventsConfig, read_kv_events_config

MIB = 2**20
KEY_VARIABLE = "VLLM_API_KEY"
LogFormat = Literal["text", "json"]


@dataclass(frozen=True)
class Operations:
    """Options for operating the server; without `api_keys` any client may send requests.

    Clients with `admin_api_key` may act on the server and on other clients' requests.
    """

    api_keys: tuple[str, ...] = ()
    admin_api_key: str | None = None
    max_body_bytes: int = 16 * MIB
    max_queued: int = 4096
    client_timeout_s: float = 60.0
    watchdog_timeout_s: float = 300.0
    log_format: LogFormat = "text"
    log_each_request: bool = True
    log_prompts: bool = False
    otlp_endpoint: str | None = None
    profile_dir: Path | None = None
    kv_events: KVEventsConfig | None = None


def add_operation_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group."""
    group, default = parser.add_argument_group("operations"), Operations()
    _add_log_flags(group)
    _add_key_flags(group)
    add = group.add_argument
    add(
        "--max-body-size",
        type=float,
        default=default.max_body_bytes / MIB,
        metavar="MIB",
        help="larger bodies (in MiB) are refused with 413",
    )
    add(
        "--max-num-queued-reqs",
        type=int,
        default=default.max_queued,
        metavar="N",
        help="sequences running and waiting; more are refused with 429",
    )
    add(
        "--client-timeout",
        type=float,
        default=default.client_timeout_s,
        metavar="SECONDS",
        help="for sending a request, and for a stalled reader to read on",
    )
    add(
        "--watchdog-timeout",
        type=float,
        default=default.watchdog_timeout_s,
        metavar="SECONDS",
        help="an engine step that takes longer ends the process with status 1",
    )
    add(
        "--profile-dir",
        type=Path,
        metavar="DIR",
        help="where traces go that clients start with /start_profile; without it there are none",
    )
    add(
        FLAG,
        metavar="JSON",
        help="tell routers what the prefix cache holds (vLLM's KV events, extra kv-events)",
    )


def _add_key_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--api-key",
        nargs="+",
        metavar="KEY",
        help=f"clients must send one of these as bearer token (or set {KEY_VARIABLE})",
    )
    add(
        "--admin-api-key",
        metavar="KEY",
        help="clients with this key may also abort all requests, flush the cache and profile",
    )


def _add_log_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--log-format", choices=get_args(LogFormat), default="text", help="of each line")
    add("--disable-uvicorn-access-log", action="store_true", help="no line for each request")
    add("--enable-log-requests", action="store_true", help="prompts too in the lines of requests")
    add(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="send a span for each request there (OpenTelemetry over HTTP, extra otel)",
    )


def read_operation_options(flags: argparse.Namespace) -> Operations:
    """Read the flags; ValueError, naming the flag, for limits below their minimum."""
    for name in ("max_body_size", "max_num_queued_reqs", "client_timeout", "watchdog_timeout"):
        if not getattr(flags, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0")
    keys = tuple(flags.api_key or filter(None, [os.environ.get(KEY_VARIABLE)]))
    admin = () if flags.admin_api_key is None else (flags.admin_api_key,)
    for name, given in (("--api-key", keys), ("--admin-api-key", admin)):
        if not all(map(_can_be_sent, given)):
            raise ValueError(f"{name}: a key is printable ASCII without spaces around it")
    if flags.admin_api_key in keys:
        raise ValueError("--admin-api-key must differ from every --api-key; this one is among them")
    if flags.otlp_traces_endpoint and not _otel_is_installed():
        raise ValueError(
            "--otlp-traces-endpoint needs the extra otel: pip install 'eagle3-jax[otel]'"
        )
    return Operations(
        api_keys=keys,
        admin_api_key=flags.admin_api_key,
        max_body_bytes=int(flags.max_body_size * MIB),
        max_queued=flags.max_num_queued_reqs,
        client_timeout_s=flags.client_timeout,
        watchdog_timeout_s=flags.watchdog_timeout,
        log_format=flags.log_format,
        log_each_request=not flags.disable_uvicorn_access_log,
        log_prompts=flags.enable_log_requests,
        otlp_endpoint=flags.otlp_traces_endpoint,
        profile_dir=flags.profile_dir,
        kv_events=_read_kv_events(flags),
    )


def _can_be_sent(key: str) -> bool:
    return key.isascii() and key.isprintable() and key.strip() == key != ""


def _read_kv_events(flags: argparse.Namespace) -> KVEventsConfig | None:
    config = read_kv_events_config(flags.kv_events_config, os.environ)
    if config and not flags.enable_prefix_caching:
        raise ValueError(f"{FLAG}: nothing is stored for others with --no-enable-prefix-caching")
    if config and flags.data_parallel_size > 1:
        raise ValueError(f"{FLAG}: events name no replica; --data-parallel-size must be 1")
    return config


def _otel_is_installed() -> bool:
    with suppress(ModuleNotFoundError):
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    return False
