"""Host memory for saved pages, addressed by slot number.

A slot holds one page in pinned memory, each device's part beside its device. Copies overlap with
programs: a save first gathers its pages on the device, a load first stages them there, and only
then does a program touch the pools. Processes have a store each and make the same calls; only the
first is asked for completion. If another's copy is later, its program waits for it as for any
input, and so do the round's collectives. No value depends on it.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from eagle3_jax.engine.programs.page_copies import CopyPrograms
from eagle3_jax.speculative.state import DecodeState

NO_SLOT = -1
"""Stands for a slot if fewer pages are copied than a program takes."""


class PageStore:
    """Saved pages by slot, and pages staged on the devices."""

    def __init__(self, programs: CopyPrograms):
        self._programs = programs
        # JAX's own stubs lack is_ready.
        self._saved: dict[int, Any] = {}
        self._staged: dict[int, Any] = {}

    @property
    def page_bytes(self) -> int:
        return self._programs.page_bytes

    def save(self, state: DecodeState, ids: jax.Array, slots: np.ndarray) -> None:
        """Start saving the present contents of pages, whatever is written to them next."""
        pages = self._programs.save(state.target_pools + state.draft_pools, ids)
        for slot, page in zip(slots.tolist(), pages, strict=True):
            if slot != NO_SLOT:
                self._saved[slot] = _moved(page, "pinned_host")

    def stage(self, slots: np.ndarray) -> None:
        """Start staging slots on the devices."""
        for slot in slots.tolist():
            if slot != NO_SLOT:
                self._staged[slot] = _moved(self._saved[slot], "device")

    def load(self, state: DecodeState, ids: jax.Array, slots: np.ndarray) -> DecodeState:
        """Write staged pages to the pools; padding writes to scratch."""
        staged = [self._staged.pop(slot) for slot in slots.tolist() if slot != NO_SLOT]
        pages = tuple(staged + staged[:1] * (len(slots) - len(staged)))
        count = len(state.target_pools)
        pools = self._programs.load(state.target_pools + state.draft_pools, ids, pages)
        return replace(state, target_pools=pools[:count], draft_pools=pools[count:])

    def bytes_of(self, slot: int) -> np.ndarray:
        """Return a slot's uint8[page_bytes], device by device; wait for its copy. Thread-safe."""
        return np.asarray(self._saved[slot])

    def fill(self, slot: int, data: np.ndarray) -> None:
        """Write uint8[page_bytes] to a slot that has no copy in flight."""
        sharding = self._programs.sharding.with_memory_kind("pinned_host")
        self._saved[slot] = jax.device_put(data, sharding)

    def are_saved(self, slots: np.ndarray) -> bool:
        """Return whether these slots hold their pages, so that no device memory is needed."""
        return all(self._saved[slot].is_ready() for slot in slots.tolist() if slot != NO_SLOT)

    def are_staged(self, slots: np.ndarray) -> bool:
        """Return whether these slots have arrived on the devices."""
        return all(self._staged[slot].is_ready() for slot in slots.tolist() if slot != NO_SLOT)


def _moved(page: jax.Array, memory_kind: str) -> jax.Array:
    """Start a copy to another memory of the page's devices."""
    return jax.device_put(page, page.sharding.with_memory_kind(memory_kind))
