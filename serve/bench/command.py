"""What commands of eagle3-bench begin and end with."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve.bench.conditions import Conditions

if TYPE_CHECKING:
    from serve.loading import LoadedPair


def given_pair(flags: argparse.Namespace) -> "LoadedPair":
    """The pair of the flags, the embedded one where they name none."""
    from serve.demo import demo_draft_dir, demo_target_dir
    from serve.loading import keep_compiled_programs, load_pair

    model, draft = flags.model, flags.draft
    if model is None:
        model, draft = demo_target_dir(), demo_draft_dir()
    pair = load_pair(Path(model), Path(draft), flags.load)
    keep_compiled_programs()
    return pair


def finish(flags: argparse.Namespace, benchmark: str, found: Conditions, result: Any) -> int:
    """Writes the record where the flags want it; 1 where what it promises does not hold."""
    from serve.bench.record import write_record

    if flags.json:
        write_record(flags.json, benchmark, found, result)
    return 0 if result.holds else 1
