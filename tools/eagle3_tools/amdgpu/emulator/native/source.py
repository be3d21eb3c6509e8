"""Write the C form of a kernel: a function for each form of instruction, and one that calls them.

Instructions that differ in registers and constants only share a function, so that gcc compiles
each form once, however long the kernel is.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.emulator.native.matrix import trace_matrix
from eagle3_tools.amdgpu.emulator.native.registers import TracedWaves
from eagle3_tools.amdgpu.emulator.native.traced import Trace, Traced
from eagle3_tools.amdgpu.emulator.operations import NO_EFFECT, translate
from eagle3_tools.amdgpu.emulator.operations.matrix import is_matrix
from eagle3_tools.amdgpu.emulator.operations.scalar import BRANCHES
from eagle3_tools.aot.amd.decode import Instruction, Kind
from eagle3_tools.aot.amd.machine_code import Kernel

RUNTIME, LAUNCH = (Path(__file__).with_name(n).read_text() for n in ("runtime.h", "launch.c"))
_MOST_REGISTERS = 512


@dataclass(frozen=True)
class Layout:
    """The instructions that can be reached, by address and in its order.

    A wave begins at one of `entries`. `leaders` are the addresses at which blocks begin.
    """

    entries: tuple[int, ...]
    reached: Mapping[int, Instruction]
    leaders: tuple[int, ...]

    @classmethod
    def of(cls, kernel: Kernel, entries: Sequence[int] = ()) -> "Layout":
        """Find what can be reached from a kernel's begin, or from other entries."""
        entries = tuple(entries) or (0,)
        found, to_do = dict[int, Instruction](), list(entries)
        while to_do:
            pc = to_do.pop()
            if pc in kernel.code and pc not in found:
                found[pc] = kernel.code[pc]
                to_do += found[pc].following
        leaders = set(entries)
        for i in found.values():
            if i.name == "s_barrier" or i.following != (i.pc + i.size,):
                leaders |= {i.pc + i.size, *i.following}
        return cls(entries, dict(sorted(found.items())), tuple(sorted(leaders & set(found))))

    @property
    def blocks(self) -> list[Counter[str]]:
        """Count the instructions of each block by name."""
        blocks: list[Counter[str]] = []
        for pc, i in self.reached.items():
            if pc in self.leaders:
                blocks.append(Counter())
            blocks[-1][i.name] += 1
        return blocks

    @property
    def registers(self) -> int:
        """Vector registers that a wave needs; a matrix has more than its operand says."""
        used = (
            register
            for i in self.reached.values()
            for operand in i.operands.values()
            if operand.kind is Kind.VECTOR
            for register in operand.registers
        )
        return min(_MOST_REGISTERS, max(used, default=0) + 33)


@dataclass(frozen=True)
class Source:
    """C text of a kernel, and of the functions that it calls by their names."""

    text: str
    functions: Mapping[str, str]


def c_source(layout: Layout, arch: str) -> Source:
    """Translate a kernel; raise Fault with the instruction that has no C form."""
    barriers = (i.pc + i.size for i in layout.reached.values() if i.name == "s_barrier")
    resumes = [*layout.entries, *barriers]
    functions: dict[str, str] = {}
    lines = []
    for pc, i in layout.reached.items():
        if pc in layout.leaders:
            lines.append(f"L{pc}: w->launch->counts[{layout.leaders.index(pc)}]++;")
        lines += _lines(i, arch, functions, resumes)
        after = i.pc + i.size
        if after not in layout.reached and after in i.following:
            lines.append(f'fail(w, "runs on to {after:#x}, where it has no instruction", 0, 0);')
    cases = " ".join(f"case {k}: goto L{pc};" for k, pc in enumerate(resumes))
    main = [
        *(text.partition(" {")[0] + ";" for text in functions.values()),
        "static int64_t run(struct wave *w) {",
        "uint32_t *const s = w->s, *const v = w->v;",
        f"switch (w->next) {{ {cases} }}",
        *lines,
        "return -1;",
        "}",
    ]
    return Source("\n".join([RUNTIME, *main, LAUNCH]), functions)


def _lines(i: Instruction, arch: str, functions: dict[str, str], resumes: list[int]) -> list[str]:
    if i.name == "s_endpgm":
        return ["return -1;"]
    if i.name == "s_barrier":
        return [f"return {resumes.index(i.pc + i.size)};"]
    if i.name == "s_branch":
        return [f"goto L{i.target};"]
    if i.name in NO_EFFECT:
        return []
    trace = Trace()
    waves: Any = TracedWaves(trace, arch)
    try:
        if i.name in BRANCHES:
            taken: Traced = BRANCHES[i.name](waves)
            trace.statement(f"return {taken.name};")
            call = _call(trace, functions, "int")
            return [f"if ({call}) goto L{i.target};"]
        if is_matrix(i):
            trace_matrix(i, trace, waves)
        else:
            translate(i)(waves)
    except Fault as fault:
        raise Fault(f"{i.name} ({i.encoding}) has no C form: {fault}") from fault
    at = [f"w->pc = {i.pc};"] if waves.may_fault else []
    return [*at, _call(trace, functions, "void") + ";"]


def _call(trace: Trace, functions: dict[str, str], gives: str) -> str:
    """Return a call of the traced function, which has a name made of its text."""
    takes = ["struct wave *w", *(f"{kind} p{k}" for k, (kind, _) in enumerate(trace.parameters))]
    head, body = f"({', '.join(takes)})", trace.body()
    name = f"f_{hashlib.sha256(f'{gives} {head} {body}'.encode()).hexdigest()[:24]}"
    functions[name] = f"{gives} {name}{head} {{\n{body}\n}}"
    return f"{name}({', '.join(['w', *(argument for _, argument in trace.parameters)])})"
