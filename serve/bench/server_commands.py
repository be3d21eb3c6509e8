"""Commands of eagle3-bench that drive servers; each returns the exit status."""

import argparse
from pathlib import Path

from rich.console import Console

from serve.bench.command import finish, given_pair
from serve.bench.conditions import allowed_cores, conditions, move_host, pin


def soak(flags: argparse.Namespace, console: Console) -> int:
    """Random traffic for minutes."""
    from serve.bench import tables
    from serve.bench.held_out import user_prompts
    from serve.bench.soak import soak as run_soak

    result = run_soak(
        user_prompts(flags.prompts),
        seconds=flags.seconds,
        concurrency=flags.concurrency,
        server_flags=["--demo", "--num-gpu-blocks-override", str(flags.pages)],
        say=Console(stderr=True).print,
    )
    tables.print_soak(console, result)
    return finish(flags, "soak", conditions(), result)


def choice(flags: argparse.Namespace, console: Console) -> int:
    """The chosen k beside fixed ones."""
    # Before any process is started: they run on the cores that this one may use.
    allowed = allowed_cores()
    found = conditions(pin(flags.core))
    from serve.bench import tables
    from serve.bench.choice import measure_choice
    from serve.bench.held_out import user_prompts

    result = measure_choice(
        user_prompts(flags.prompts),
        num_speculative_tokens=flags.k,
        repetitions=flags.repetitions,
        requests=flags.requests,
        concurrencies=flags.concurrency,
        leave_core=lambda: move_host(allowed, found.pinned_core),
        say=Console(stderr=True).print,
    )
    tables.print_conditions(console, found, flags.repetitions)
    tables.print_choice(console, result)
    return finish(flags, "choice", found, result)


def sweep(flags: argparse.Namespace, console: Console) -> int:
    """Any OpenAI server at several loads."""
    from serve.bench.sweep.command import run_sweep

    return run_sweep(flags, console)


def report(flags: argparse.Namespace, console: Console) -> int:
    """Tables, figures and a page of results."""
    from serve.bench.sweep.report import read_results, write_report
    from serve.bench.sweep.tables import print_sweep

    results = read_results(flags.results)
    page = write_report(results, Path(flags.output or flags.results[0]))
    print_sweep(console, results)
    console.print(f"{page}")
    return 0


def http(flags: argparse.Namespace, console: Console) -> int:
    """The server beside its engine offline."""
    # Before JAX starts its threads, here and in the server: they compute on the engines' core.
    allowed = allowed_cores()
    found = conditions(pin(allowed[0] if allowed else None))
    from serve.bench import tables
    from serve.bench.held_out import held_out
    from serve.bench.over_http import measure_http
    from serve.bench.over_http_sides import Cores
    from serve.bench.over_http_table import print_http

    pair = given_pair(flags)
    result = measure_http(
        pair,
        held_out(pair.tokenizer, flags.prompts),
        Cores.of(allowed),
        num_speculative_tokens=flags.k,
        repetitions=flags.repetitions,
        requests=flags.requests,
        concurrencies=flags.concurrency,
        say=Console(stderr=True).print,
    )
    tables.print_conditions(console, found, flags.repetitions)
    print_http(console, result)
    return finish(flags, "http", found, result)
