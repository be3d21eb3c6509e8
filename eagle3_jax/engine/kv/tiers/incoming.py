"""Incoming pages: transfers from a page source into host memory, for waiting sequences.

On any failure a key is missing in host memory and its sequence prefills; pages on the devices are
never affected. A transfer always runs to completion, even if all waiting requests were cancelled.
"""

from collections.abc import Sequence

from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.page_tiers import KeyedSlot, PageSource


class IncomingPages:
    """Slots that sources are filling; `failed` counts pages whose transfer failed."""

    def __init__(self, tier: HostTier):
        self._tier = tier
        self._in_flight: dict[int, tuple[PageSource, dict[int, bytes | None]]] = {}
        self.failed = 0

    @property
    def is_busy(self) -> bool:
        """True if a source has slots to fill."""
        return bool(self._in_flight)

    def waits_for(self, source: PageSource | None) -> bool:
        """Return whether `source` is still filling slots."""
        return id(source) in self._in_flight

    def begin(self, source: PageSource, keys: list[bytes], missing: set[bytes]) -> set[bytes]:
        """Start transfers of a source's missing keys while there are slots; return these keys."""
        wanted = [key for key in keys[: source.match(keys)] if key in missing]
        placed: list[KeyedSlot] = []
        for key in wanted:
            if (slot := self._tier.reserve()) is None:
                break
            placed.append(KeyedSlot(key, slot))
        if placed:
            self._in_flight[id(source)] = (source, {slot: key for key, slot in placed})
            source.load(placed)
        return {key for key, _ in placed}

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Discard pages that arrive later for `keys`. With `keys=None`, discard all in flight."""
        for _, slots in self._in_flight.values():
            for slot, key in slots.items():
                if keys is None or key in keys:
                    slots[slot] = None

    def poll(self) -> None:
        """Publish pages whose transfer has finished, and release the slots of those that failed."""
        for name, (source, slots) in list(self._in_flight.items()):
            for slot, ok in source.poll():
                key = slots.pop(slot)
                self._tier.complete(key or b"", slot, ok=ok and key is not None)
                self.failed += not ok
            if not slots:
                del self._in_flight[name]
