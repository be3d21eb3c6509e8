"""Commands of eagle3-bench that drive engines of this process; each returns the exit status."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from serve.bench.command import finish, given_pair
from serve.bench.conditions import allowed_cores, conditions, move_host, pin

QUICK_PROMPTS, PROMPTS = 2, 40
QUICK_TOKENS, TOKENS = 24, 64


def measure_cpu(flags: argparse.Namespace, console: Console) -> int:
    """Plain decoding and rounds on the CPU."""
    # Before anything runs on JAX or torch: both size their thread pools by the cores they may use.
    allowed = allowed_cores()
    found = conditions(pin(flags.core))
    from serve.bench import cpu, cpu_tables, tables
    from serve.bench.record import write_record

    say = Console(stderr=True).print
    plain = []
    if flags.only != "round":
        plain = cpu.run_plain(flags.repetitions, flags.peers, say)
    rounds, host_core = [], found.pinned_core
    if flags.only != "plain":
        pair = given_pair(flags)
        host_core = move_host(allowed, found.pinned_core)
        rounds = cpu.run_rounds(pair, flags.repetitions, flags.prompts, say)
    record = cpu.CpuRecord(flags.repetitions, plain, rounds, host_core)
    tables.print_conditions(console, found, flags.repetitions)
    if plain:
        cpu_tables.print_plain(console, plain)
    if rounds:
        cpu_tables.print_rounds(console, rounds)
    if flags.json:
        write_record(flags.json, "cpu", found, record)
    return 0


def accept(flags: argparse.Namespace, console: Console) -> int:
    """Accept length by category, here or of a server."""
    from serve.bench import tables
    from serve.bench.accept import AcceptRecord
    from serve.bench.accept_command import accept_at_url, accept_here
    from serve.bench.record import write_record

    found = conditions()
    title, rows = accept_at_url(flags) if flags.url else accept_here(flags, given_pair(flags))
    tables.print_accept(console, rows, title)
    if flags.json:
        tree = {"eagle_topk": flags.eagle_topk, "num_draft_tokens": flags.num_draft_tokens}
        k = len(rows[-1].per_position) if flags.url else flags.k
        record = AcceptRecord(k, **tree, temperature=flags.temperature, rows=rows, tasks=title)
        write_record(flags.json, "accept", found, record)
    return 0


def acceptance(flags: argparse.Namespace, console: Console) -> int:
    """Acceptance beside what p and q give."""
    from serve.bench.acceptance import check_acceptance
    from serve.bench.acceptance_table import print_acceptance
    from serve.bench.held_out import held_out

    found, pair = conditions(), given_pair(flags)
    result = check_acceptance(pair, held_out(pair.tokenizer, flags.prompts), flags.k)
    print_acceptance(console, result)
    return finish(flags, "acceptance", found, result)


def equal(flags: argparse.Namespace, console: Console) -> int:
    """Whether outputs are equal whatever k, batch and preemption."""
    from serve.bench import tables
    from serve.bench.equal import check_equal
    from serve.bench.equal_plan import full_plan, quick_plan
    from serve.bench.held_out import held_out

    found, pair = conditions(), given_pair(flags)
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
    return finish(flags, "equal", found, result)


def drafts(flags: argparse.Namespace, console: Console) -> int:
    """Drafts of several forms beside each other."""
    from serve.bench import tables
    from serve.bench.drafts import compare_drafts
    from serve.bench.embedded_drafts import embedded_drafts, named
    from serve.bench.held_out import held_out
    from serve.notices import say_on_stderr

    found, pair = conditions(), given_pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts)
    with TemporaryDirectory(prefix="eagle3-drafts-") as into:
        drafts = [*embedded_drafts(Path(into), say_on_stderr), *named(flags.others)]
        result = compare_drafts(pair, drafts, prompts, flags.k)
    tables.print_drafts(console, result)
    return finish(flags, "drafts", found, result)


def kv_cache(flags: argparse.Namespace, console: Console) -> int:
    """Caches of several dtypes, or the factors of one."""
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
    found, pair = conditions(), given_pair(flags)
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


def grammar(flags: argparse.Namespace, console: Console) -> int:
    """Answers by schema."""
    from serve.bench import tables
    from serve.bench.held_out import held_out
    from serve.bench.structured import measure_structured

    found, pair = conditions(), given_pair(flags)
    prompts = [p.token_ids for p in held_out(pair.tokenizer, 40) if p.category == "structured"]
    result = measure_structured(pair, prompts, flags.generations, flags.k, flags.repetitions)
    tables.print_grammar(console, result)
    return finish(flags, "grammar", found, result)


def convert(flags: argparse.Namespace, console: Console) -> int:
    """A conversion beside a plain copy."""
    from serve.bench import tables
    from serve.bench.convert import measure_conversion

    found, say = conditions(), Console(stderr=True).print
    nbytes = int(flags.gib * 2**30)
    result = measure_conversion(Path(flags.directory), nbytes, flags.repetitions, say)
    tables.print_convert(console, result)
    return finish(flags, "convert", found, result)
