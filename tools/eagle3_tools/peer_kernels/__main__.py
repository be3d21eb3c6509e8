"""`make peer-kernels`: AITER's Triton kernels of a folder beside our recorded ones, by the model.

compile.py makes the folder. Predictions for MI355X include the start and end of each launch.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from eagle3_tools.aot.amd.code_object import read_code_object, read_metadata, taken_arguments
from eagle3_tools.aot.amd.facts import read_facts
from eagle3_tools.aot.amd.trip_counts import Arguments
from eagle3_tools.aot.triton_calls import TritonCall
from eagle3_tools.kernel_model.gpus import MI355X
from eagle3_tools.kernel_model.predict import Call, predict
from eagle3_tools.kernel_model.record import recorded
from serve.text_table import text_table

_POINTER, _WORD, _MASK = 8, 4, 0xFFFF_FFFF
_QUANTISES = "quantize_fp8"
"""Our launch before a PTPC product. Both sides leave it out: AITER's is another kernel."""


def seconds_of(path: Path) -> float:
    """Return the predicted seconds of a launch that compile.py wrote, start and end included."""
    launch = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    (kernel,) = read_code_object(path)
    kernel = replace(kernel, lds_bytes=max(launch["lds"], kernel.lds_bytes))
    kernel = replace(kernel, threads=64 * launch["warps"])
    read, written, words = _arguments(kernel.code, launch["arguments"])
    grid = tuple(launch["grid"])
    shape = grid, launch["warps"], launch["stages"]
    call = TritonCall(kernel.name, kernel.name, *shape, read, written, (), "")
    known = Arguments(words=words, trips=launch.get("trips"))
    facts = read_facts(kernel, call, launch["arch"], known)
    share = Call(launch.get("touched", 1.0), launch.get("live", 1.0))
    return predict(facts, MI355X, share).seconds + MI355X.graph_gap


def _arguments(
    code: bytes, given: list[dict[str, Any]]
) -> tuple[dict[int, int], int, dict[int, int]]:
    """Return bytes of the arrays read by argument, bytes written, and sizes by byte offset."""
    (entry,) = read_metadata(code)["amdhsa.kernels"]
    read, written, words = dict[int, int](), 0, dict[int, int]()
    for place, argument in zip(taken_arguments(entry), given, strict=False):
        at = place[".offset"]
        if argument.get("written"):
            written += argument["bytes"]
        elif "bytes" in argument:
            read[at // _POINTER] = argument["bytes"]
        elif "value" in argument:
            for start in range(0, place[".size"], _WORD):
                words[at + start] = argument["value"] >> 8 * start & _MASK
    return read, written, words


def ours() -> Mapping[str, float]:
    """Return case without its operation -> predicted seconds of our launches."""
    return {
        name.partition(" ")[2]: sum(
            found.seconds + MI355X.graph_gap
            for kernel, found in zip(case.kernels, case.predictions(MI355X), strict=True)
            if kernel.name != _QUANTISES
        )
        for name, case in recorded(MI355X.arch).items()
    }


def main(folder: Path, console: Console) -> None:
    """Print both sides. Raises ValueError if the folder has no launches."""
    peers: dict[str, float] = {}
    for path in sorted(folder.glob("*.hsaco")):
        case = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["case"]
        peers[case] = peers.get(case, 0.0) + seconds_of(path)
    if not peers:
        raise ValueError(f"no compiled kernels in {folder}: run make peer-kernels AITER=CHECKOUT")
    title = "MI355X, predicted us: AITER's Triton kernels and ours"
    table = text_table(title, ("case", "AITER", "ours", "AITER / ours"), left=("case",))
    own = ours()
    for case, seconds in peers.items():
        mine = own.get(case)
        beside = (f"{mine * 1e6:.1f}", f"{seconds / mine:.2f}") if mine else ("", "")
        table.add_row(case, f"{seconds * 1e6:.1f}", *beside)
    console.print(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Console(width=120))
