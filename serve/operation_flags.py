"""The flags about running a server: who may ask, how much at once, and how long things may take."""

import argparse
import os
from dataclasses import dataclass

MIB = 2**20
KEY_VARIABLE = "VLLM_API_KEY"


@dataclass(frozen=True)
class Operations:
    """How the server is run. No keys: anybody may ask."""

    api_keys: tuple[str, ...] = ()
    max_body_bytes: int = 16 * MIB
    max_queued: int = 4096
    client_timeout_s: float = 60.0
    watchdog_timeout_s: float = 300.0


def add_operation_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags in a group of their own."""
    group, default = parser.add_argument_group("operations"), Operations()
    group.add_argument(
        "--api-key",
        nargs="+",
        metavar="KEY",
        help=f"clients must send one of these as bearer token (or set {KEY_VARIABLE})",
    )
    group.add_argument(
        "--max-body-size",
        type=float,
        default=default.max_body_bytes / MIB,
        metavar="MIB",
        help="larger bodies are refused with 413",
    )
    group.add_argument(
        "--max-num-queued-reqs",
        type=int,
        default=default.max_queued,
        metavar="N",
        help="sequences running and waiting; more are refused with 429",
    )
    group.add_argument(
        "--client-timeout",
        type=float,
        default=default.client_timeout_s,
        metavar="SECONDS",
        help="for sending a request, and for a stalled reader to read on",
    )
    group.add_argument(
        "--watchdog-timeout",
        type=float,
        default=default.watchdog_timeout_s,
        metavar="SECONDS",
        help="an engine step that takes longer ends the process with status 1",
    )


def read_operation_options(flags: argparse.Namespace) -> Operations:
    """Raises ValueError, naming the flag, for limits below their least."""
    for name in ("max_body_size", "max_num_queued_reqs", "client_timeout", "watchdog_timeout"):
        if not getattr(flags, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0")
    keys = tuple(flags.api_key or filter(None, [os.environ.get(KEY_VARIABLE)]))
    if not all(key.isascii() and key.isprintable() and key.strip() == key != "" for key in keys):
        raise ValueError("--api-key: a key is printable ASCII without spaces around it")
    return Operations(
        api_keys=keys,
        max_body_bytes=int(flags.max_body_size * MIB),
        max_queued=flags.max_num_queued_reqs,
        client_timeout_s=flags.client_timeout,
        watchdog_timeout_s=flags.watchdog_timeout,
    )
