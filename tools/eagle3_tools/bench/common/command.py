"""The pair a study measures, and its record and exit status."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import TOKENIZER_ALONE
from convert.hub.flags import source_of
from eagle3_tools.bench.common.conditions import Conditions
from serve.demo import demo_dirs
from serve.options.parallel import ONE_DEVICE
from serve.options.sources import tokenizer_source
from serve.pair.loading import LoadedPair, load_pair
from serve.pair.program_cache import keep_compiled_programs


def given_pair(flags: argparse.Namespace, *, vision: bool = False) -> LoadedPair:
    """The pair of the flags, the embedded one where they name none, on their devices.

    vision: see `load_pair`.
    """
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
    """The target of the flags, the embedded one where they name none."""
    if flags.model is None:
        return demo_dirs(flags.demo)[0]
    return find_checkpoint(source_of(flags, flags.model, flags.revision))


def finish(flags: argparse.Namespace, benchmark: str, found: Conditions, result: Any) -> int:
    """Writes the record where the flags want it; 1 where what it promises does not hold."""
    if flags.json:
        write_record(flags.json, benchmark, found, result)
    return 0 if getattr(result, "holds", True) else 1


def write_record(path: str | Path, benchmark: str, found: Conditions, record: Any) -> None:
    """Writes a dataclass, the benchmark that made it and the conditions; infinities become null."""
    fields = {"benchmark": benchmark, "conditions": asdict(found), **finite(asdict(record))}
    Path(path).write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """JSON has neither infinities nor NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
