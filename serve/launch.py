"""Runs eagle3-serve: from checked options to exit status."""

import asyncio
import gc
import os
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console

from eagle3_jax.engine import Engine
from eagle3_jax.engine.grammars.interface import NO_GRAMMARS
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.programs.processes.call import Peers
from serve.app import create_app
from serve.asgi.listening.accepting import raise_limit, room_for_connections
from serve.asgi.listening.graceful import GracefulServer, bind, do_within, exposure, run_to_end
from serve.asgi.listening.tls import tls_context
from serve.chat_format.limited_templates import limited
from serve.chat_setup import read_answers, set_up_chat, set_up_images
from serve.demo import PairDirectories, find_pair
from serve.engine.grammar_pool import GrammarPool
from serve.engine.thread import EngineThread
from serve.hosts.facts import Facts, facts
from serve.hosts.runtime import leave
from serve.kv_events.start import publishing
from serve.kv_transfer.start import one_after_the_other, start_transfers
from serve.least_loaded import least_loaded
from serve.openai.seeds import seed_source
from serve.openai.service import ModelInfo, Service
from serve.options.chat import ChatOptions
from serve.options.foreign.flags import say_without_effect
from serve.options.foreign.variables import say_not_read
from serve.options.hosts import HostOptions, joined
from serve.options.serve_options import ServeOptions
from serve.pair.generation_config import choose_defaults
from serve.pair.loading import LoadedPair, build_engine, fit_length, load_pair
from serve.pair.notices import Say, both
from serve.pair.program_cache import keep_compiled_programs
from serve.startup import LoggedStartup, StartupReport, describe_engine, say_cautions
from serve.telemetry.logs import configure_logging
from serve.telemetry.metrics import Metrics
from serve.telemetry.observers import observers_of
from serve.telemetry.record import RecordHandler

if TYPE_CHECKING:
    from serve.hosts.lead import Leader
    from serve.kv_events.publisher import KVEventPublisher

Report = StartupReport | LoggedStartup
SEND_S = 2.0
"""For a collector to take the last spans."""


def run(options: ServeOptions, without_effect: list[str], overhear: Say | None = None) -> int:
    """Serves until a signal, then ends the process: with 0, or 1 when the engine died or could not
    start.

    overhear: also told what this process of several has to say of the others.
    Returns 2 for an address, files or sizes that can't be used.
    """
    configure_logging(options.operations.log_format)
    to_log = options.operations.log_format == "json"
    console = Console(stderr=True, quiet=to_log)
    report = LoggedStartup() if to_log else StartupReport(console)
    for line in (*say_without_effect(without_effect), *say_not_read(os.environ)):
        report.say(line)
    keep_compiled_programs(report.say)
    raise_limit()
    # The time to read a number grows with the square of its digits.
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    hosts, leader = options.hosts, None
    if hosts and not hosts.leads:
        return _follow(options, hosts, report, console, overhear)
    with ExitStack() as stack:
        try:
            address = stack.enter_context(bind(options.host, options.port))
            found = find_pair(options, console)
            if hosts:
                from serve.hosts.lead import lead  # Needs the extra hosts.

                leader = lead(hosts, *_alike(options, found), both(report.say, overhear))
            tls = tls_context(**asdict(options.http.tls)) if options.http.tls else None
            events = stack.enter_context(publishing(options.operations.kv_events, report.say))
            service = prepare(options, found, report, leader, events)
            observers, send_spans = observers_of(
                options.operations, service.model.names[0], service.tokenizer.token_bytes
            )
            max_connections = room_for_connections()
        except (OSError, ValueError) as error:
            report.say(f"eagle3-serve: error: {error}")
            if leader:
                leader.stop(str(error))
            return leave(2) if hosts else 2
        if warning := exposure(address, options.operations.api_keys):
            report.say(warning)
        status = run_to_end(
            _serve(options, service, observers, address, report, leader, max_connections, tls)
        )
    if leader:
        leader.stop()
    do_within(SEND_S, send_spans)
    # Not by returning: a thread that still compiles would crash a regular exit, others hold it up.
    leave(status)


def _follow(
    options: ServeOptions,
    hosts: HostOptions,
    report: Report,
    console: Console,
    overhear: Say | None,
) -> int:
    """Runs a process that is not the first; returns as `run`."""
    try:
        found = find_pair(options, console)
    except (OSError, ValueError) as error:
        report.say(f"eagle3-serve: error: {error}")
        return 2
    from serve.hosts.follow import follow  # Needs the extra hosts.

    # What process 0 says need not be said by all.
    return follow(
        hosts,
        *_alike(options, found),
        lambda: _build(options, found, lambda _: None)[0],
        both(report.say, overhear),
    )


def _alike(options: ServeOptions, found: PairDirectories) -> tuple[Facts, int]:
    """What all processes of an engine must have alike, and over how many devices it lies."""
    assert options.hosts, "only several processes are compared"
    settings = {**asdict(options.engine), "devices": options.parallel, "loading": options.load}
    settings["vision"] = options.images.loads_vision
    alike = facts(options.hosts, found.target, found.draft, settings)
    return alike, options.parallel.devices


def prepare(
    options: ServeOptions,
    found: PairDirectories,
    report: Report,
    leader: "Leader | None",
    events: "KVEventPublisher | None",
) -> Service:
    """Loads the pair and makes what answers requests; ValueError or OSError where it can't be."""
    choose = choose_defaults(options.generation_config, options.generation_overrides)
    engine, pair = _build(options, found, report.say, leader, events.log if events else None)
    names = options.served_model_name or (options.model or options.demo,)
    metrics = Metrics(names[0])
    transfers = start_transfers(engine, options.kv_transfer, report.say)
    thread = EngineThread(
        engine,
        metrics,
        max_queued=options.operations.max_queued,
        progress=report.on_compiled,
        explain=leader.explain if leader else None,
        between_steps=one_after_the_other(
            events and events.publish, transfers and transfers.between_steps
        ),
    )
    if transfers:
        transfers.run_soon = thread.run_soon
        metrics.watch_kv_transfers(transfers)
    metrics.watch(lambda: thread.stats)
    if events:
        metrics.watch_kv_events(events)
    share = options.memory.claim(os.environ) if options.memory else None
    metrics.describe_cache(engine.config, share)
    model = ModelInfo(names, options.model or str(found.target), engine.config.max_model_len)
    report.say(describe_engine(engine.config))
    say_cautions(engine.config, report.say)
    return Service(
        model,
        limited(pair.tokenizer),
        thread,
        metrics,
        {**choose(pair.defaults), "logprobs_mode": options.logprobs_mode},
        seed_source(options.seed),
        options.spec_metrics,
        grammars=_grammars(engine, options.chat),
        reading=read_answers(options.chat, pair.tokenizer),
        template_kwargs=options.chat.template_kwargs,
        strict_tools=options.chat.strict_tools,
        thinking_token_budget=options.chat.thinking_token_budget,
        transfers=transfers,
        images=set_up_images(options.images, pair.vision),
    )


def _grammars(engine: Engine, options: ChatOptions) -> GrammarPool | None:
    """The engine's grammars, each tried in a process of its own before it is compiled here.

    Raises ValueError where it has none but options need them.
    """
    if engine.grammars is None:
        if options.strict_tools or options.thinking_token_budget is not None:
            raise ValueError(f"--strict-tools, --thinking-token-budget: {NO_GRAMMARS}")
        return None
    from serve.engine.grammar_trials import GrammarTrials  # Needs llguidance, as those grammars do.

    trials = GrammarTrials(engine.grammars.prepare())
    trials.start()
    engine.grammars.try_by(trials)
    return GrammarPool(engine.grammars)


def _build(
    options: ServeOptions,
    found: PairDirectories,
    say: Say,
    peers: Peers | None = None,
    kv_events: KVEventLog | None = None,
) -> tuple[Engine, LoadedPair]:
    """Loads the pair and makes its engine, as every process of it does."""
    say(f"loading {options.model or options.demo}")
    pair = load_pair(
        found.target,
        found.draft,
        options.load,
        options.parallel,
        tokenizer=found.tokenizer,
        vision=options.images.loads_vision,
        split_vision=options.engine.mm_encoder_tp_mode == "weights",
        configure=lambda target, _: fit_length(options.engine, options.max_model_len, target),
        memory=options.memory,
        least_loaded=least_loaded,
        say=say,
        adapt_tokenizer=partial(set_up_chat, options.chat),
    )
    clock = time.monotonic
    return build_engine(pair, pair.config, clock=clock, peers=peers, kv_events=kv_events), pair


async def _serve(
    options: ServeOptions,
    service: Service,
    observers: Sequence[RecordHandler],
    address: socket.socket,
    report: Report,
    leader: "Leader | None",
    max_connections: int,
    tls: ssl.SSLContext | None,
) -> int:
    server = GracefulServer(
        create_app(service, options.operations, observers, options.http),
        service.engine,
        service.arrivals,
        drain_timeout_s=options.drain_timeout_s,
        client_timeout_s=options.operations.client_timeout_s,
        max_connections=max_connections,
        tls=tls,
    )
    tasks = [asyncio.create_task(_announce(service, address, report, tls))]
    if leader:
        tasks.append(asyncio.create_task(_end_together(service, server, leader)))
    await server.serve(sockets=[address])
    for task in tasks:
        task.cancel()
    return server.exit_status


async def _end_together(service: Service, server: GracefulServer, leader: "Leader") -> None:
    """Ends with a peer that is lost or has to stop, and the peers with an engine that has died."""
    loop = asyncio.get_running_loop()

    def on_end(reason: str) -> None:
        loop.call_soon_threadsafe(server.give_up, reason)

    def on_drain() -> None:
        loop.call_soon_threadsafe(server.drain)

    leader.on_end, leader.on_drain = on_end, on_drain
    await service.engine.dead.wait()
    leader.stop("its engine failed")


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
