"""Runs eagle3-serve, from checked options to the exit status."""

import asyncio
import gc
import os
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import jax.profiler
from fastapi import FastAPI
from rich.console import Console

from serve.app import create_app
from serve.asgi.accepting import raise_limit, room_for_connections, tls_context
from serve.asgi.graceful import GracefulServer, bind, do_within, exposure, run_to_end
from serve.asgi.known_hosts import checks_hosts
from serve.demo import PairDirectories, find_pair
from serve.engine.thread import EngineThread
from serve.engine_setup import Report, build, build_again, prepare
from serve.hosts.facts import Facts, facts
from serve.hosts.runtime import exit_now
from serve.kv_events.config import KVEventsConfig
from serve.openai.service import Service
from serve.options.foreign import describe_ignored_flags, describe_ignored_variables
from serve.options.hosts import HostOptions, joined
from serve.options.serve_options import ServeOptions
from serve.pair.cpu_threads import set_cpu_threads
from serve.pair.notices import Notify
from serve.pair.program_cache import keep_compiled_programs
from serve.startup import LoggedStartup, StartupReport
from serve.telemetry.logs import configure_logging
from serve.telemetry.observers import observers_of

if TYPE_CHECKING:
    from serve.hosts.group import ManualGroup
    from serve.hosts.ray_group import RayGroup
    from serve.kv_events.publisher import KVEventPublisher

Beside = Callable[[EngineThread, GracefulServer], Coroutine[Any, Any, None]]
"""Coroutine that runs beside the server and may end it."""
SEND_S = 2.0
"""Time for a trace collector to receive the last spans."""
SWITCH_S = 0.001
"""Interval after which a thread gives up Python's global lock to a waiting thread. With the default
of 5 ms, event loop and engine wait that long for each thread that reads a body, many times a
request."""


def run(options: ServeOptions, without_effect: list[str], argv: Sequence[str] = ()) -> int:
    """Serve until a signal, then end the process: status 0, or 1 if the engine failed.

    Returns 2 for an address, files or sizes that cannot be used; otherwise it does not return. Ray
    starts further processes with `argv`, the arguments of the command.
    """
    console, report = _begin(options)
    if options.hosts and not options.hosts.leads:
        return _follow(options, options.hosts, report, console)
    for line in (*describe_ignored_flags(without_effect), *describe_ignored_variables(os.environ)):
        report.notify(line)
    group = leader = None
    with ExitStack() as stack:
        try:
            address = stack.enter_context(bind(options.host, options.port))
            found = find_pair(options, console)
            group = _group(options, argv, found, report.notify)
            leader = group.lead() if group else None
            tls = tls_context(**asdict(options.http.tls)) if options.http.tls else None
            events = _publishing(options.operations.kv_events, report.notify, stack)
            service = prepare(options, found, report, leader, events, stack)
            observers, send_spans = observers_of(
                options.operations, service.model.names[0], service.tokenizer.token_bytes
            )
            max_connections = room_for_connections()
        except (OSError, ValueError) as error:
            report.notify(f"eagle3-serve: error: {error}")
            if group:
                group.stop(str(error))
                exit_now(2)
            return 2
        if warning := exposure(address, options.operations.api_keys):
            report.notify(warning)
        again = partial(build_again, options, found, service, events and events.log)
        beside = partial(group.supervise, rebuild=again) if group else None
        profiler = group.profiler if group else jax.profiler
        keys, allowed = options.operations.api_keys, options.http.allowed_hosts
        web = replace(options.http, checks_hosts=checks_hosts(address, keys, allowed))
        app = create_app(service, options.operations, observers, web, profiler)
        serving = _serve(options, service, app, address, report, beside, max_connections, tls)
        status = run_to_end(serving)
    if group:
        group.stop()
    do_within(SEND_S, send_spans)
    # A regular return would crash if a thread still compiles, and would wait for other threads.
    exit_now(status)


def _begin(options: ServeOptions) -> tuple[Console, Report]:
    """Do the setup that every process needs. Returns the console and the reporter of progress."""
    configure_logging(options.operations.log_format)
    console = Console(stderr=True, quiet=options.operations.log_format == "json")
    report = LoggedStartup() if console.quiet else StartupReport(console)
    set_cpu_threads(options.cpu_threads)
    keep_compiled_programs(report.notify)
    raise_limit()
    # The time to parse an integer grows with the square of its digits.
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    sys.setswitchinterval(SWITCH_S)
    return console, report


def _follow(
    options: ServeOptions,
    hosts: HostOptions,
    report: Report,
    console: Console,
) -> int:
    """Run a process that does not lead. Returns like `run`."""
    try:
        found = find_pair(options, console)
    except (OSError, ValueError) as error:
        report.notify(f"eagle3-serve: error: {error}")
        return 2
    from serve.hosts.follow import follow  # Needs the extra hosts.

    # The leading process, or process 0 for it, reports progress. The others stay silent.
    return follow(
        hosts,
        _alike(options, found),
        options.parallel.devices,
        lambda notify: build(options, found, notify)[0],
        report.notify,
    )


def _group(
    options: ServeOptions, argv: Sequence[str], found: PairDirectories, notify: Notify
) -> "ManualGroup | RayGroup | None":
    """Return the group of the engine's other processes, or None if there are none."""
    if options.ray:
        from serve.hosts.ray_group import RayGroup  # Needs the extras ray and hosts.

        return RayGroup(run, argv, options, _alike(options, found), notify)
    if options.hosts:
        from serve.hosts.group import ManualGroup  # Needs the extra hosts.

        devices = options.parallel.devices
        return ManualGroup(options.hosts, _alike(options, found), devices, notify)
    return None


def _publishing(
    config: KVEventsConfig | None, notify: Notify, stack: ExitStack
) -> "KVEventPublisher | None":
    """Publish until the stack ends and report the endpoints; ValueError for unusable ones."""
    if config is None:
        return None
    from serve.kv_events.publisher import KVEventPublisher  # Needs the extra kv-events.

    publisher = stack.enter_context(KVEventPublisher(config))
    exposed = "; whoever can connect reads prompts there" if config.exposed else ""
    notify(f"{publisher}{exposed}")
    return publisher


def _alike(options: ServeOptions, found: PairDirectories) -> Facts:
    """Return the facts that all processes of an engine must agree on."""
    count = (options.hosts or options.ray).num_processes  # pyright: ignore[reportOptionalMemberAccess]
    settings = {**asdict(options.engine), "devices": options.parallel, "loading": options.load}
    settings["vision"] = options.images.loads_vision
    return facts(count, found.target, found.draft, settings)


async def _serve(
    options: ServeOptions,
    service: Service,
    app: FastAPI,
    address: socket.socket,
    report: Report,
    beside: Beside | None,
    max_connections: int,
    tls: ssl.SSLContext | None,
) -> int:
    server = GracefulServer(
        app,
        service.engine,
        service.in_flight,
        drain_timeout_s=options.drain_timeout_s,
        client_timeout_s=options.operations.client_timeout_s,
        max_connections=max_connections,
        tls=tls,
    )
    tasks = [asyncio.create_task(_announce(service, address, report, tls))]
    if beside:
        tasks.append(asyncio.create_task(beside(service.engine, server)))
    await server.serve(sockets=[address])
    for task in tasks:
        task.cancel()
    return server.exit_status


async def _announce(
    service: Service, address: socket.socket, report: Report, tls: ssl.SSLContext | None
) -> None:
    await service.engine.ready.wait()
    # The garbage collector need not scan the startup objects when a large body triggers it.
    gc.freeze()
    where = joined(*address.getsockname()[:2])
    names = ", ".join(service.model.names)
    scheme = "http" if tls is None else "https"
    report.notify(f"ready: {scheme}://{where}/v1 (model {names}; /health, /metrics, /docs)")
