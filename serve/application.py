"""Builds the server as an ASGI application, for a process that is not eagle3-serve."""

from dataclasses import replace

from fastapi import FastAPI
from rich.console import Console

from serve.app import create_app
from serve.asgi.known_hosts import checks_hosts
from serve.demo import find_pair
from serve.engine_setup import prepare
from serve.openai.service import Service
from serve.options.serve_options import ServeOptions
from serve.pair.cpu_threads import set_cpu_threads
from serve.pair.program_cache import keep_compiled_programs
from serve.sandbox.sandbox import WHOLE_PROCESS
from serve.startup import LoggedStartup
from serve.telemetry.observers import observers_of


def build_app(options: ServeOptions) -> tuple[FastAPI, Service]:
    """Load the model and return the ASGI application (for example for Ray Serve) and its service.

    Programs are compiled in the application's lifespan. Raises ValueError for invalid options and
    for those of a process that owns its address or peers, and OSError for unreadable files.
    """
    if options.hosts or options.operations.kv_events or options.http.tls:
        raise ValueError("several hosts, --kv-events-config and HTTPS are eagle3-serve's alone")
    report = LoggedStartup()
    set_cpu_threads(options.cpu_threads)
    keep_compiled_programs(report.notify)
    found = find_pair(options, Console(stderr=True, quiet=True))
    service = prepare(options, found, report, None, None, WHOLE_PROCESS)
    named, spell = service.model.names[0], service.tokenizer.token_bytes
    observers, _ = observers_of(options.operations, named, spell)
    keys, allowed = options.operations.api_keys, options.http.allowed_hosts
    web = replace(options.http, checks_hosts=checks_hosts(None, keys, allowed))
    return create_app(service, options.operations, observers, web), service
