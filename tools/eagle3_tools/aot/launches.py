"""Launches of a compiled program in order: the cost of a small batch besides its bytes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_tools.aot.collectives import collective_kind
from eagle3_tools.aot.hlo import Instruction, parse_module
from eagle3_tools.aot.triton_calls import TARGET as TRITON_CALL

_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "call"),
    *("partition-id", "replica-id", "opt-barrier", "add-dependency", "domain", "async-start"),
}
_FREE_CALLS = {"Sharding", "AllocateBuffer", "annotate_device_placement"}
_NAMES = {"while": "loop", "conditional": "branch"}


@dataclass(frozen=True)
class Launch:
    """One launch. kind: kernel (handwritten), library, loop, branch, collective or XLA's name of
    the operation, mostly fusion. scope: the JAX operation with its named scopes. times: number of
    executions in a loop; 0 if it depends on data."""

    name: str
    kind: str
    result: str
    scope: str
    times: int = 1


def launches(hlo: str) -> list[Launch]:
    """Return every launch of an optimised module, those of a loop's body once, after the loop."""
    executed = parse_module(hlo).executed()
    return [launch for instruction, times in executed if (launch := _launch(instruction, times))]


def count(found: Sequence[Launch]) -> int:
    """Count launches without collectives. A loop whose length depends on data counts once."""
    return sum(max(launch.times, 1) for launch in found if launch.kind != "collective")


def _launch(instruction: Instruction, times: int) -> Launch | None:
    opcode, name = instruction.opcode, instruction.name
    kind = opcode.removesuffix("-start")
    if opcode in _FREE or opcode.endswith("-done"):
        return None
    if collective_kind(opcode):
        kind = "collective"
    elif opcode == "custom-call":
        target = re.search(r'custom_call_target="([^"]*)"', instruction.text)
        kind, name = "library", target[1] if target else name
        if name in _FREE_CALLS:
            return None
        if name == TRITON_CALL:
            kind, name = "kernel", re.findall(r'\bname = "([^"]*)"', instruction.text)[-1]
    result = re.sub(r"\{[^}]*\}", "", instruction.type) if kind not in _NAMES else ""
    return Launch(name, _NAMES.get(kind, kind), result, instruction.op_name, times)
