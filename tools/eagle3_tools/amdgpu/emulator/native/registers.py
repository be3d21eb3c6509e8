"""Registers and memory of one wave, as the operations see them while they are traced."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from eagle3_tools.amdgpu.emulator.native.traced import LANES, Trace, Traced
from eagle3_tools.amdgpu.emulator.waves import refuse_unknown
from eagle3_tools.aot.amd.decode import EXEC

U32, U64 = np.uint32, np.uint64


class _File:
    """Registers of one kind; the second index, the chosen waves, has no meaning here."""

    def __init__(self, trace: Trace, *, of_lanes: bool):
        self._trace, self._of_lanes = trace, of_lanes

    def __getitem__(self, key: tuple[int, Any]) -> Traced:
        index, _ = key
        if not self._of_lanes:
            return Traced(self._trace, self._trace.parameter("uint32_t", f"s[{index}]"), U32, False)
        place = self._trace.parameter("const uint32_t *", f"v + {LANES * index}")
        return self._trace.value(f"{place}[l]", U32, of_lanes=True)


class _Flag:
    """The wave's SCC."""

    def __init__(self, trace: Trace):
        self._trace = trace

    def __getitem__(self, chosen: Any) -> Traced:
        return self._trace.value("w->scc", bool, of_lanes=False)

    def __setitem__(self, chosen: Any, value: Any) -> None:
        self._trace.statement(f"w->scc = {self._trace.of(value).name};")


class TracedWaves:
    """Has the methods of `Waves` that operations use, and writes C statements."""

    chosen = slice(None)

    def __init__(self, trace: Trace, arch: str):
        self._trace, self.arch = trace, arch
        self.vectors = _File(trace, of_lanes=True)
        self.scalars = _File(trace, of_lanes=False)
        self.scc = _Flag(trace)
        self.may_fault = False

    @property
    def saturates(self) -> Traced:
        """MODE's bit FP16_OVFL."""
        return self._trace.value("w->saturates", bool, of_lanes=False)

    @saturates.setter
    def saturates(self, value: bool) -> None:
        self._trace.statement(f"w->saturates = {int(value)};")

    def active(self) -> Traced:
        """Return the active lanes."""
        return self._trace.value("w->active[l]", bool, of_lanes=True)

    def scalar(self, index: int, value: Any) -> None:
        """Write a scalar register."""
        refuse_unknown(index)
        place = self._trace.parameter("uint32_t *", f"s + {index}")
        self._trace.statement(f"*{place} = {self._trace.of(value, U32).name};")
        if index in (EXEC, EXEC + 1):
            self._trace.statement("expand(w->s[126], w->s[127], w->active);")

    def vector(self, index: int, value: Any, lanes: Any = None) -> None:
        """Write a vector register in the given lanes or the active ones."""
        place = self._trace.parameter("uint32_t *", f"v + {LANES * index}")
        text = self._trace.of(value, U32).name
        where = "w->active[l]" if lanes is None else self._trace.of(lanes).name
        self._trace.lane_statement(f"{place}[l] = {where} ? {text} : {place}[l];")

    def mask(self, index: int) -> Traced:
        """Read a lane mask."""
        if index == EXEC:
            return self.active()
        low, high = (self.scalars[index + k, None].name for k in (0, 1))
        return self._expanded(low, high)

    def _expanded(self, low: str, high: str) -> Traced:
        name = self._trace.array(bool)
        self._trace.statement(f"expand({low}, {high}, {name});")
        return self._trace.value(f"{name}[l]", bool, of_lanes=True)

    def set_mask(self, index: int, lanes: Any) -> None:
        """Write a lane mask, with 0 for inactive lanes."""
        name = self._trace.array(bool)
        value = self._trace.of(lanes).name
        self._trace.lane_statement(f"{name}[l] = {value} & w->active[l];")
        for k in (0, 1):
            place = self._trace.parameter("uint32_t *", f"s + {index + k}")
            self._trace.statement(f"*{place} = packed({name} + {32 * k});")
        if index == EXEC:
            self._trace.statement("expand(w->s[126], w->s[127], w->active);")

    def first_active(self) -> Traced:
        """Return the first active lane, or 0."""
        return self._trace.value("first(w->active)", np.int64, of_lanes=False)

    def refuse(self, wrong: Any, what: str) -> None:
        """End the launch with this fault if a wave or lane has the condition."""
        value = self._trace.of(wrong)
        self.may_fault = True
        text = f'if ({value.name}) fail(w, "{what}", 0, 0);'
        if value.of_lanes:
            name = self._trace.array(bool)
            self._trace.lane_statement(f"{name}[l] = {value.name};")
            text = f'if (any({name})) fail(w, "{what}", 0, 0);'
        self._trace.statement(text)

    def load(self, address: Any, lanes: Any, size: int, count: int) -> list[Traced]:
        """Load `count` elements from each lane's address; 0 in other lanes."""
        return self._load("load_global", U64, address, lanes, size, count)

    def load_local(self, place: Any, size: int, count: int) -> list[Traced]:
        """Load `count` elements of local memory in the active lanes; 0 in others."""
        return self._load("load_local", U32, place, self.active(), size, count)

    def load_words(self, address: Any, count: int) -> list[Traced]:
        """Load `count` words of a scalar load."""
        self.may_fault = True
        place = self._trace.of(address, U64).name
        name = self._trace.array(U32)
        self._trace.statement(f"load_words(w, {place}, {count}, {name});")
        return [self._trace.value(f"{name}[{k}]", U32, of_lanes=False) for k in range(count)]

    def store(self, address: Any, lanes: Any, values: Sequence[Any], size: int) -> None:
        """Store the low bytes of each value at consecutive places of each lane's address."""
        self._store("store_global", U64, address, lanes, values, size)

    def store_local(self, place: Any, values: Sequence[Any], size: int) -> None:
        """Store to local memory in the active lanes."""
        self._store("store_local", U32, place, self.active(), values, size)

    def exchange(self, address: Any, lanes: Any, new: Any, expected: Any) -> Traced:
        """Compare and swap, or add without `expected`, lane after lane; return the old words."""
        kinds = [(address, U64), (lanes, bool), (new, U32)]
        kinds += [] if expected is None else [(expected, U32)]
        arrays = [self.spilled([value], kind) for value, kind in kinds]
        out, self.may_fault = self._trace.array(U32), True
        name = "add" if expected is None else "exchange"
        self._trace.statement(f"{name}(w, {', '.join(arrays)}, {out});")
        return self._trace.value(f"{out}[l]", U32, of_lanes=True)

    def _load(
        self, name: str, kind: Any, address: Any, lanes: Any, size: int, count: int
    ) -> list[Traced]:
        arrays = f"{self.spilled([address], kind)}, {self.spilled([lanes], bool)}"
        out, self.may_fault = self._trace.array(U32, count), True
        self._trace.statement(f"{name}(w, {arrays}, {size}, {count}, {out});")
        return [
            self._trace.value(f"{out}[{LANES * k} + l]", U32, of_lanes=True) for k in range(count)
        ]

    def _store(
        self, name: str, kind: Any, address: Any, lanes: Any, values: Sequence[Any], size: int
    ) -> None:
        arrays = f"{self.spilled([address], kind)}, {self.spilled([lanes], bool)}"
        held, self.may_fault = self.spilled(values, U32), True
        self._trace.statement(f"{name}(w, {arrays}, {size}, {len(values)}, {held});")

    def spilled(self, values: Sequence[Any], kind: Any) -> str:
        """Put the lanes' values into an array and return its name."""
        name = self._trace.array(kind, len(values))
        for k, value in enumerate(values):
            text = self._trace.of(value, kind).name
            self._trace.lane_statement(f"{name}[{LANES * k} + l] = {text};")
        return name
