"""python -m eagle3_tools.walk: run every feature once on JAX's devices and compare the answers.

First record the expected answers on a CPU, JAX_PLATFORMS=cpu python -m eagle3_tools.walk --record
FILE; then compare on the device with --expect FILE. Each part is a process of its own and prints
a line of JSON when it ends. A failed part does not end the walk.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import jax

from eagle3_tools.bench.equality.ties import Scorer
from eagle3_tools.checks.record import Record, read_record
from eagle3_tools.walk.answers import Found, differences
from eagle3_tools.walk.parts import PARTS, SERVERS, Part
from eagle3_tools.walk.place import Place
from serve.pair.loading import load_pair

LONGEST = 192
"""Tokens of the longest prompt with its answer."""


@dataclass(frozen=True)
class Outcome:
    """A part that ran, its seconds, and its result or what failed."""

    part: Part
    seconds: float
    result: Found | Exception


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0, or 1 if a part failed or an answer differs by more than a tie."""
    flags = _parse(argv)
    # Parts use the device in processes of their own; this one computes what explains a tie.
    jax.config.update("jax_platforms", "cpu")
    expected = {line["part"]: line for line in read_record(flags.expect)} if flags.expect else {}
    record = Record(flags.record)
    record.begin()
    only = flags.only or [part.name for part in PARTS]
    chosen = [part for part in PARTS if part.devices <= flags.devices and part.name in only]
    holds = True
    with tempfile.TemporaryDirectory() as folder:
        for outcome in _run(chosen, Path(folder), flags.limit):
            line = _line(outcome, expected if flags.expect else None)
            record.add("part", **line)
            shown = {key: value for key, value in line.items() if key != "answers"}
            print(json.dumps(shown), flush=True)
            holds &= line["holds"]
    return 0 if holds and chosen else 1


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -P -m eagle3_tools.walk", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the lines and answers")
    parser.add_argument("--expect", type=Path, metavar="FILE", help="a record to compare with")
    parser.add_argument("--only", nargs="+", metavar="PART", help=", ".join(p.name for p in PARTS))
    parser.add_argument("--devices", type=int, default=1, metavar="N", help="that there are")
    parser.add_argument("--limit", type=float, default=600, metavar="S", help="seconds for a part")
    flags = parser.parse_args(argv)
    unknown = {*(flags.only or ())} - {part.name for part in PARTS}
    if unknown:
        parser.error(f"--only: no part is called {', '.join(sorted(unknown))}")
    return flags


def _run(parts: Sequence[Part], folder: Path, limit_s: float) -> Iterator[Outcome]:
    """Yield each part with its result or failure; neighbours with one server share its start."""
    for server, members in groupby(parts, key=lambda part: part.server):
        if server is None:
            for part in members:
                yield _timed(part, Place(folder, limit_s))
        else:
            yield from _run_served(server, list(members), Place(folder, limit_s))


def _run_served(server: str, parts: list[Part], place: Place) -> Iterator[Outcome]:
    """Yield the server's parts; the first one's seconds include the start."""
    waiting = parts.copy()
    try:
        with place.served(SERVERS[server]) as there:
            while waiting:
                yield _timed(waiting.pop(0), there)
                there = replace(there, started=time.monotonic())
    except (OSError, TimeoutError) as error:
        end = replace(parts[-1], name=f"end of the server {server}")
        for part in waiting or [end]:
            yield Outcome(part, time.monotonic() - place.started, error)


def _timed(part: Part, place: Place) -> Outcome:
    try:
        result: Found | Exception = part.run(place)
    except Exception as error:  # Whatever fails is this part's failure, and the walk goes on.
        result = error
    return Outcome(part, time.monotonic() - place.started, result)


def _line(outcome: Outcome, expected: Mapping[str, Any] | None) -> dict[str, Any]:
    part, result = outcome.part, outcome.result
    found = {"part": part.name, "seconds": round(outcome.seconds, 1)}
    if isinstance(result, Exception):
        return found | {"holds": False, "reason": f"{type(result).__name__}: {result}"}
    ties, errors = list[str](), list[str]()
    if expected is not None:
        if part.name in expected:
            ties, errors = differences(result, expected[part.name], _scorer)
        else:
            errors = ["the record to compare with lacks this part"]
    return found | {"holds": not errors, "errors": errors, "ties": ties, **result.as_json()}


@cache
def _scorer(target: Path) -> Scorer:
    pair = load_pair(target, None)
    return Scorer(pair.target, LONGEST, pair.eos_token_ids)


if __name__ == "__main__":
    sys.exit(main())
