"""The command eagle3-bench."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from serve.bench.conditions import allowed_cores, conditions, move_host, pin
from serve.bench.flags import parse_bench_flags

if TYPE_CHECKING:
    from serve.loading import LoadedPair

QUICK_PROMPTS, PROMPTS = 2, 40
QUICK_TOKENS, TOKENS = 24, 64
FILE_WIDTH = 140


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 when outputs differ, 2 for flags and files of no use."""
    flags = parse_bench_flags(sys.argv[1:] if argv is None else argv)
    commands = {
        "cpu": _cpu,
        "accept": _accept,
        "acceptance": _acceptance,
        "equal": _equal,
        "drafts": _drafts,
        "kv-cache": _kv_cache,
        "soak": _soak,
        "choice": _choice,
        "grammar": _grammar,
        "convert": _convert,
        "sweep": _sweep,
        "report": _report,
        "http": _http,
    }
    try:
        return commands[flags.command](flags, _console())
    except (ImportError, OSError, ValueError) as error:
        print(f"eagle3-bench: error: {error}", file=sys.stderr)
        return 2


def _console() -> Console:
    """Tables keep their columns where standard output is a file."""
    return Console(width=None if sys.stdout.isatty() else FILE_WIDTH)


def _cpu(flags: argparse.Namespace, console: Console) -> int:
    # Before anything runs on JAX or torch: both size their thread pools by the cores they may use.
    allowed = allowed_cores()
    found = conditions(pin(flags.core))
    from serve.bench import cpu, tables
    from serve.bench.record import write_record

    say = Console(stderr=True).print
    plain = cpu.run_plain(flags.repetitions, say) if flags.only != "round" else []
    rounds, host_core = [], found.pinned_core
    if flags.only != "plain":
        pair = _pair(flags)
        host_core = move_host(allowed, found.pinned_core)
        rounds = cpu.run_rounds(pair, flags.repetitions, flags.prompts, say)
    record = cpu.CpuRecord(flags.repetitions, plain, rounds, host_core)
    tables.print_conditions(console, found, flags.repetitions)
    if plain:
        tables.print_plain(console, plain)
    if rounds:
        tables.print_rounds(console, rounds)
    if flags.json:
        write_record(flags.json, "cpu", found, record)
    return 0


def _accept(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.accept import AcceptRecord
    from serve.bench.accept_command import accept_at_url, accept_here
    from serve.bench.record import write_record

    found = conditions()
    title, rows = accept_at_url(flags) if flags.url else accept_here(flags, _pair(flags))
    tables.print_accept(console, rows, title)
    if flags.json:
        tree = {"eagle_topk": flags.eagle_topk, "num_draft_tokens": flags.num_draft_tokens}
        k = len(rows[-1].per_position) if flags.url else flags.k
        record = AcceptRecord(k, **tree, temperature=flags.temperature, rows=rows, tasks=title)
        write_record(flags.json, "accept", found, record)
    return 0


def _acceptance(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench.acceptance import check_acceptance
    from serve.bench.acceptance_table import print_acceptance
    from serve.bench.held_out import held_out
    from serve.bench.record import write_record

    found, pair = conditions(), _pair(flags)
    result = check_acceptance(pair, held_out(pair.tokenizer, flags.prompts), flags.k)
    print_acceptance(console, result)
    if flags.json:
        write_record(flags.json, "acceptance", found, result)
    return 0 if result.holds else 1


def _equal(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.equal import check_equal
    from serve.bench.equal_plan import full_plan, quick_plan
    from serve.bench.held_out import held_out
    from serve.bench.record import write_record

    found, pair = conditions(), _pair(flags)
    assert pair.draft is not None, "the flags ask for a draft"
    prompts = held_out(pair.tokenizer, flags.prompts or (QUICK_PROMPTS if flags.quick else PROMPTS))
    result = check_equal(
        pair.target,
        pair.draft,
        [prompt.token_ids for prompt in prompts],
        quick_plan() if flags.quick else full_plan(),
        eos_token_ids=pair.eos_token_ids,
        max_tokens=flags.max_tokens or (QUICK_TOKENS if flags.quick else TOKENS),
        on_case=lambda case: tables.print_case(console, case),
    )
    tables.print_equal(console, result)
    if flags.json:
        write_record(flags.json, "equal", found, result)
    return 0 if result.holds else 1


def _drafts(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.drafts import compare_drafts
    from serve.bench.embedded_drafts import embedded_drafts, named
    from serve.bench.held_out import held_out
    from serve.bench.record import write_record
    from serve.notices import say_on_stderr

    found, pair = conditions(), _pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts)
    with TemporaryDirectory(prefix="eagle3-drafts-") as into:
        drafts = [*embedded_drafts(Path(into), say_on_stderr), *named(flags.others)]
        result = compare_drafts(pair, drafts, prompts, flags.k)
    tables.print_drafts(console, result)
    if flags.json:
        write_record(flags.json, "drafts", found, result)
    return 0 if result.holds else 1


def _kv_cache(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.held_out import held_out
    from serve.bench.kv_cache import compare_caches
    from serve.bench.kv_scales import measure_kv_scales
    from serve.bench.record import write_record
    from serve.cache_flags import parse_scale
    from serve.kv_scale_file import write_kv_scales
    from serve.notices import say_on_stderr

    given = flags.kv_cache_scale
    scale = None if given is None else parse_scale(given)
    found, pair = conditions(), _pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts)
    if scale is None:
        scale, measured = measure_kv_scales(pair, prompts, flags.k)
        if flags.measure:
            write_kv_scales(Path(flags.measure), scale, measured)
            console.print(f"{flags.measure}: {len(scale.target)} + {len(scale.draft)} factors")
            return 0
    result = compare_caches(pair, prompts, flags.k, kv_cache_scale=scale, say=say_on_stderr)
    tables.print_caches(console, result)
    if flags.json:
        write_record(flags.json, "kv_cache", found, result)
    return 0


def _soak(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.held_out import user_prompts
    from serve.bench.record import write_record
    from serve.bench.soak import soak

    result = soak(
        user_prompts(flags.prompts),
        seconds=flags.seconds,
        concurrency=flags.concurrency,
        server_flags=["--demo", "--num-gpu-blocks-override", str(flags.pages)],
        say=Console(stderr=True).print,
    )
    tables.print_soak(console, result)
    if flags.json:
        write_record(flags.json, "soak", conditions(), result)
    return 0 if result.holds else 1


def _choice(flags: argparse.Namespace, console: Console) -> int:
    # Before any process is started: they run on the cores that this one may use.
    allowed = allowed_cores()
    found = conditions(pin(flags.core))
    from serve.bench import tables
    from serve.bench.choice import measure_choice
    from serve.bench.held_out import user_prompts
    from serve.bench.record import write_record

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
    if flags.json:
        write_record(flags.json, "choice", found, result)
    return 0 if result.holds else 1


def _grammar(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.held_out import held_out
    from serve.bench.record import write_record
    from serve.bench.structured import measure_structured

    found, pair = conditions(), _pair(flags)
    prompts = [p.token_ids for p in held_out(pair.tokenizer, 40) if p.category == "structured"]
    result = measure_structured(pair, prompts, flags.generations, flags.k, flags.repetitions)
    tables.print_grammar(console, result)
    if flags.json:
        write_record(flags.json, "grammar", found, result)
    return 0 if result.holds else 1


def _convert(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench import tables
    from serve.bench.convert import measure_conversion
    from serve.bench.record import write_record

    found, say = conditions(), Console(stderr=True).print
    nbytes = int(flags.gib * 2**30)
    result = measure_conversion(Path(flags.directory), nbytes, flags.repetitions, say)
    tables.print_convert(console, result)
    if flags.json:
        write_record(flags.json, "convert", found, result)
    return 0 if result.holds else 1


def _sweep(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench.sweep.command import run_sweep

    return run_sweep(flags, console)


def _report(flags: argparse.Namespace, console: Console) -> int:
    from serve.bench.sweep.report import read_results, write_report
    from serve.bench.sweep.tables import print_sweep

    results = read_results(flags.results)
    page = write_report(results, Path(flags.output or flags.results[0]))
    print_sweep(console, results)
    console.print(f"{page}")
    return 0


def _http(flags: argparse.Namespace, console: Console) -> int:
    # Before JAX starts its threads, here and in the server: they compute on the engines' core.
    allowed = allowed_cores()
    found = conditions(pin(allowed[0] if allowed else None))
    from serve.bench import tables
    from serve.bench.held_out import held_out
    from serve.bench.over_http import measure_http
    from serve.bench.over_http_sides import Cores
    from serve.bench.over_http_table import print_http
    from serve.bench.record import write_record

    pair = _pair(flags)
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
    if flags.json:
        write_record(flags.json, "http", found, result)
    return 0 if result.holds else 1


def _pair(flags: argparse.Namespace) -> "LoadedPair":
    from serve.demo import demo_draft_dir, demo_target_dir
    from serve.loading import keep_compiled_programs, load_pair

    model, draft = flags.model, flags.draft
    if model is None:
        model, draft = demo_target_dir(), demo_draft_dir()
    pair = load_pair(Path(model), Path(draft), flags.load)
    keep_compiled_programs()
    return pair
