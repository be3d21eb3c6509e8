"""Host memory that pages of the cache are saved to, by the number of a slot in it.

A slot holds one page in pinned memory, each device's part beside its device. Copies run beside the
programs: a save first gathers its pages on the device, a load first brings them there, and only
then does a program touch the pools. Several processes have a store each and make the same calls.
The first alone is asked what has arrived: where another's copy is later, its program waits for it,
as programs wait for every input, and that round's collectives with it. No number depends on it.
"""

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from eagle3_jax.engine.programs.page_copies import CopyPrograms
from eagle3_jax.speculative.state import DecodeState

NO_SLOT = -1
"""In place of a slot where fewer pages are copied than a program takes."""


class PageStore:
    """Saved pages by slot, and those on their way back to the devices."""

    def __init__(self, programs: CopyPrograms):
        self._programs = programs
        # JAX's own stubs leave is_ready out.
        self._saved: dict[int, Any] = {}
        self._staged: dict[int, Any] = {}

    @property
    def page_bytes(self) -> int:
        """Of a slot, on all devices together."""
        return self._programs.page_bytes

    def save(self, state: DecodeState, ids: jax.Array, slots: np.ndarray) -> None:
        """Begins to copy pages: what they hold now will be in the slots, whatever is written to
        them next."""
        pages = self._programs.save(state.target_pools + state.draft_pools, ids)
        for slot, page in zip(slots.tolist(), pages, strict=True):
            if slot != NO_SLOT:
                self._saved[slot] = _moved(page, "pinned_host")

    def stage(self, slots: np.ndarray) -> None:
        """Begins to copy slots to the devices."""
        for slot in slots.tolist():
            if slot != NO_SLOT:
                self._staged[slot] = _moved(self._saved[slot], "device")

    def load(self, state: DecodeState, ids: jax.Array, slots: np.ndarray) -> DecodeState:
        """The state with what was staged in these pages, of which padding is scratch."""
        staged = [self._staged.pop(slot) for slot in slots.tolist() if slot != NO_SLOT]
        pages = tuple(staged + staged[:1] * (len(slots) - len(staged)))
        count = len(state.target_pools)
        pools = self._programs.load(state.target_pools + state.draft_pools, ids, pages)
        return replace(state, target_pools=pools[:count], draft_pools=pools[count:])

    def bytes_of(self, slot: int) -> np.ndarray:
        """What a slot holds: uint8[page_bytes], one device's part behind the other. Any thread may
        ask; waits for a copy that is under way."""
        return np.asarray(self._saved[slot])

    def fill(self, slot: int, data: np.ndarray) -> None:
        """Puts a page of uint8[page_bytes] into a slot that no copy is under way to or from."""
        sharding = self._programs.sharding.with_memory_kind("pinned_host")
        self._saved[slot] = jax.device_put(data, sharding)

    def are_saved(self, slots: np.ndarray) -> bool:
        """Whether these slots hold their pages, so that nothing of them is left on the device."""
        return all(self._saved[slot].is_ready() for slot in slots.tolist() if slot != NO_SLOT)

    def are_staged(self, slots: np.ndarray) -> bool:
        """Whether these slots have reached the devices."""
        return all(self._staged[slot].is_ready() for slot in slots.tolist() if slot != NO_SLOT)


def _moved(page: jax.Array, memory_kind: str) -> jax.Array:
    """Its copy in another memory of its devices, begun and not waited for."""
    return jax.device_put(page, page.sharding.with_memory_kind(memory_kind))
