"""Load the pair that a study measures, write its record, choose its exit status."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import TOKENIZER_ALONE
from convert.hub.source import source_of
from eagle3_tools.bench.common.conditions import Conditions
from eagle3_tools.checks.record import write_json
from serve.demo import demo_dirs
from serve.options.pair import tokenizer_source
from serve.options.parallel import ONE_DEVICE
from serve.pair.loading import LoadedPair, load_pair
from serve.pair.program_cache import keep_compiled_programs


def given_pair(flags: argparse.Namespace, *, vision: bool = False) -> LoadedPair:
    """Load the pair that the flags name (default: embedded); for `vision` see `load_pair`."""
    tokenizer = tokenizer_source(flags)
    model = target_directory(flags)
    if flags.model is None:
        draft = demo_dirs(flags.demo)[1]
    else:
        draft = find_checkpoint(source_of(flags, flags.draft, flags.draft_revision))
    found = tokenizer and find_checkpoint(tokenizer, TOKENIZER_ALONE)
    parallel = getattr(flags, "parallel", ONE_DEVICE)
    pair = load_pair(model, draft, flags.load, parallel, tokenizer=found, vision=vision)
    keep_compiled_programs()
    return pair


def target_directory(flags: argparse.Namespace) -> Path:
    """Return the target directory that the flags name; the embedded target if they name none."""
    if flags.model is None:
        return demo_dirs(flags.demo)[0]
    return find_checkpoint(source_of(flags, flags.model, flags.revision))


def finish(flags: argparse.Namespace, benchmark: str, found: Conditions, result: Any) -> int:
    """Write the record if `--json` is given; return 1 if the result's `holds` is false."""
    if flags.json:
        write_record(flags.json, benchmark, found, result)
    return 0 if getattr(result, "holds", True) else 1


def write_record(path: str | Path, benchmark: str, found: Conditions, record: Any) -> None:
    """Write a dataclass, its benchmark's name and conditions as JSON; infinities become null."""
    fields = {"benchmark": benchmark, "conditions": asdict(found), **asdict(record)}
    write_json(path, fields)
