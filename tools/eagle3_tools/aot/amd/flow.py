"""Control flow of a kernel's machine code: blocks, execution order and loops."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

from eagle3_tools.aot.amd.decode import Instruction


@dataclass(frozen=True)
class Loop:
    """A natural loop: the blocks from which its header is reached again without leaving it."""

    header: int
    blocks: frozenset[int]


@dataclass(frozen=True)
class Flow:
    """Control flow graph: basic blocks by first address, and the blocks that may follow each, the
    branch target last. A kernel begins at 0."""

    blocks: Mapping[int, tuple[Instruction, ...]]
    following: Mapping[int, tuple[int, ...]]

    @cached_property
    def preceding(self) -> Mapping[int, tuple[int, ...]]:
        """Possible predecessors of each block."""
        found: dict[int, list[int]] = {block: [] for block in self.blocks}
        for block, targets in self.following.items():
            for target in targets:
                found[target].append(block)
        return {block: tuple(before) for block, before in found.items()}

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The loops, outer ones first; those with the same header are one."""
        found: dict[int, set[int]] = {}
        for block, targets in self.following.items():
            for target in targets:
                if target in self._dominators[block]:
                    found.setdefault(target, {target}).update(self._back_from(block, target))
        loops = [Loop(header, frozenset(blocks)) for header, blocks in found.items()]
        return tuple(sorted(loops, key=lambda loop: -len(loop.blocks)))

    def inner_of(self, loop: Loop | None) -> tuple[Loop, ...]:
        """Return the loops directly inside `loop`, or the outermost ones for None."""
        inside = [
            one
            for one in self.loops
            if one is not loop and (loop is None or one.blocks < loop.blocks)
        ]
        return tuple(a for a in inside if not any(a.blocks < b.blocks for b in inside))

    def instructions(self, blocks: Iterable[int]) -> tuple[Instruction, ...]:
        """Return the instructions of the blocks in address order."""
        return tuple(i for block in sorted(blocks) for i in self.blocks[block])

    def path_to(self, target: int) -> tuple[int, ...]:
        """Return the path from the entry to `target` (excluded) that takes the fewest branches on
        EXEC, which need all lanes to agree, and then has the fewest blocks."""
        best: dict[int, int] = {}
        waiting = [(0, 0, 0, 0)]
        while waiting and target not in best:
            skipped, length, block, before = heappop(waiting)
            if block in best:
                continue
            best[block] = before
            skips = self.blocks[block][-1].name in ("s_cbranch_execz", "s_cbranch_execnz")
            for number, following in enumerate(self.following[block]):
                heappush(waiting, (skipped + (skips and number), length + 1, following, block))
        path, block = [], target
        while block:
            block = best[block]
            path.append(block)
        return tuple(reversed(path))

    def path_from(self, loop: Loop) -> tuple[int, ...]:
        """Return the longest path (in instructions) after a loop that enters no other loop."""
        others = frozenset[int]().union(*(one.blocks for one in self.loops))
        longest: dict[int, tuple[int, tuple[int, ...]]] = {}

        def behind(block: int) -> tuple[int, tuple[int, ...]]:
            if block not in longest:
                longest[block] = 0, ()  # A cycle outside of any loop is left out.
                ways = [behind(next) for next in self.following[block] if next not in others]
                length, way = max(ways, default=(0, ()))
                longest[block] = length + len(self.blocks[block]), (block, *way)
            return longest[block]

        exits = {t for b in loop.blocks for t in self.following[b] if t not in loop.blocks}
        return max((behind(block) for block in exits - others), default=(0, ()))[1]

    def settle(self, start: Any, run: Callable[[Instruction, Any], None]) -> None:
        """Run an analysis along every path until no block begins in a new state.

        `run` changes the state before an instruction to that after it. A state has `copy`, and
        `join`, which adds that of another path and returns whether it was new.
        """
        before, to_do = {0: start}, [0]
        while to_do:
            block = to_do.pop()
            state = before[block].copy()
            for i in self.blocks[block]:
                run(i, state)
            for target in self.following[block]:
                if target not in before:
                    before[target] = state.copy()
                    to_do.append(target)
                elif before[target].join(state):
                    to_do.append(target)

    @cached_property
    def _dominators(self) -> Mapping[int, frozenset[int]]:
        everything = frozenset(self.blocks)
        found = dict.fromkeys(self.blocks, everything)
        found[0] = frozenset([0])
        changed = True
        while changed:
            changed = False
            for block in sorted(self.blocks):
                before = [found[one] for one in self.preceding[block]]
                if not block or not before:
                    continue
                mine = frozenset.intersection(*before) | {block}
                changed |= mine != found[block]
                found[block] = mine
        return found

    def _back_from(self, block: int, header: int) -> set[int]:
        found, to_do = {header}, [block]
        while to_do:
            one = to_do.pop()
            if one not in found:
                found.add(one)
                to_do += self.preceding[one]
        return found


def read_flow(code: Mapping[int, Instruction]) -> Flow:
    """Return the reachable blocks. Raises KeyError if a branch leaves the code."""
    starts, to_do = {0}, [0]
    ends: dict[int, tuple[int, ...]] = {}
    seen: set[int] = set()
    while to_do:
        at = to_do.pop()
        while at not in seen:
            seen.add(at)
            targets = code[at].following
            if targets != (at + code[at].size,):
                ends[at] = targets
                starts.update(targets)
                to_do += targets
                break
            at += code[at].size
    blocks, following = {}, {}
    for start in sorted(starts):
        at, block = start, [code[start]]
        while at not in ends and at + code[at].size not in starts:
            at += code[at].size
            block.append(code[at])
        blocks[start] = tuple(block)
        following[start] = ends.get(at, (at + code[at].size,))
    return Flow(blocks, following)
