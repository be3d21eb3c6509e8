"""Runs eagle3-serve: from checked options to exit status."""

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
from serve.asgi.known_hosts import checks_hosts
from serve.asgi.listening.accepting import raise_limit, room_for_connections
from serve.asgi.listening.graceful import GracefulServer, bind, do_within, exposure, run_to_end
from serve.asgi.listening.tls import tls_context
from serve.demo import PairDirectories, find_pair
from serve.engine.thread import EngineThread
from serve.engine_setup import Report, build, build_again, prepare
from serve.hosts.facts import Facts, facts
from serve.hosts.runtime import leave
from serve.kv_events.start import publishing
from serve.openai.service import Service
from serve.options.foreign.flags import say_without_effect
from serve.options.foreign.variables import say_not_read
from serve.options.hosts import HostOptions, joined
from serve.options.serve_options import ServeOptions
from serve.pair.notices import Say
from serve.pair.program_cache import keep_compiled_programs
from serve.startup import LoggedStartup, StartupReport
from serve.telemetry.logs import configure_logging
from serve.telemetry.observers import observers_of

if TYPE_CHECKING:
    from serve.hosts.group import Group

Beside = Callable[[EngineThread, GracefulServer], Coroutine[Any, Any, None]]
"""What runs beside the server and may end it."""
SEND_S = 2.0
"""For a collector to take the last spans."""
SWITCH_S = 0.001
"""How long a thread keeps Python's lock while another waits for it. With Python's own 5 ms, event
loop and engine would wait so long for each thread that reads a body, many times a request."""


def run(options: ServeOptions, without_effect: list[str], argv: Sequence[str] = ()) -> int:
    """Serves until a signal, then ends the process: with 0, or 1 when the engine died or could not
    start.

    argv: the command's, for processes that Ray is to start with it.
    Returns 2 for an address, files or sizes that can't be used.
    """
    console, report = _begin(options)
    if options.hosts and not options.hosts.leads:
        return _follow(options, options.hosts, report, console)
    for line in (*say_without_effect(without_effect), *say_not_read(os.environ)):
        report.say(line)
    group = leader = None
    with ExitStack() as stack:
        try:
            address = stack.enter_context(bind(options.host, options.port))
            found = find_pair(options, console)
            group = _group(options, argv, found, report.say)
            leader = group.lead() if group else None
            tls = tls_context(**asdict(options.http.tls)) if options.http.tls else None
            events = stack.enter_context(publishing(options.operations.kv_events, report.say))
            service = prepare(options, found, report, leader, events)
            observers, send_spans = observers_of(
                options.operations, service.model.names[0], service.tokenizer.token_bytes
            )
            max_connections = room_for_connections()
        except (OSError, ValueError) as error:
            report.say(f"eagle3-serve: error: {error}")
            if group:
                group.stop(str(error))
                leave(2)
            return 2
        if warning := exposure(address, options.operations.api_keys):
            report.say(warning)
        again = partial(build_again, options, found, service, events and events.log)
        beside = partial(group.accompany, rebuild=again) if group else None
        profiler = group.profiler if group else jax.profiler
        keys, allowed = options.operations.api_keys, options.http.allowed_hosts
        web = replace(options.http, checks_hosts=checks_hosts(address, keys, allowed))
        app = create_app(service, options.operations, observers, web, profiler)
        serving = _serve(options, service, app, address, report, beside, max_connections, tls)
        status = run_to_end(serving)
    if group:
        group.stop()
    do_within(SEND_S, send_spans)
    # Not by returning: a thread that still compiles would crash a regular exit, others hold it up.
    leave(status)


def _begin(options: ServeOptions) -> tuple[Console, Report]:
    """What every process does first; where it says how it goes."""
    configure_logging(options.operations.log_format)
    console = Console(stderr=True, quiet=options.operations.log_format == "json")
    report = LoggedStartup() if console.quiet else StartupReport(console)
    keep_compiled_programs(report.say)
    raise_limit()
    # The time to read a number grows with the square of its digits.
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    sys.setswitchinterval(SWITCH_S)
    return console, report


def _follow(
    options: ServeOptions,
    hosts: HostOptions,
    report: Report,
    console: Console,
) -> int:
    """Runs a process that does not lead; returns as `run`."""
    try:
        found = find_pair(options, console)
    except (OSError, ValueError) as error:
        report.say(f"eagle3-serve: error: {error}")
        return 2
    from serve.hosts.follow import follow  # Needs the extra hosts.

    # What one says need not be said by all: who leads does, or has it from process 0.
    return follow(
        hosts,
        _alike(options, found),
        options.parallel.devices,
        lambda say: build(options, found, say)[0],
        report.say,
    )


def _group(
    options: ServeOptions, argv: Sequence[str], found: PairDirectories, say: Say
) -> "Group | None":
    """The other processes of the engine, if there are any."""
    if options.ray:
        from serve.hosts.ray_group import StartedByRay  # Needs the extras ray and hosts.

        return StartedByRay(run, argv, options, _alike(options, found), say)
    if options.hosts:
        from serve.hosts.group import StartedByHand  # Needs the extra hosts.

        devices = options.parallel.devices
        return StartedByHand(options.hosts, _alike(options, found), devices, say)
    return None


def _alike(options: ServeOptions, found: PairDirectories) -> Facts:
    """What all processes of an engine must have alike."""
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
        service.arrivals,
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
    # What is there now stays: collections that a large body sets off needn't go through it.
    gc.freeze()
    where = joined(*address.getsockname()[:2])
    names = ", ".join(service.model.names)
    scheme = "http" if tls is None else "https"
    report.say(f"ready: {scheme}://{where}/v1 (model {names}; /health, /metrics, /docs)")
