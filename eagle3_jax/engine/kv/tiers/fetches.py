"""Pages on their way from somewhere else into the host's memory, for sequences that wait.

Whatever goes wrong leaves a key out of the host's memory, and its sequence prefills: no failure
touches a page on the devices. A source that was begun is heard to its end, whoever still waits.
"""

from collections.abc import Sequence

from eagle3_jax.engine.kv.tiers.host_tier import HostTier
from eagle3_jax.engine.kv.tiers.tier import KeyedSlot, PageSource


class Fetches:
    """Slots that sources fill, until each is filled or given up. failed: pages that were."""

    def __init__(self, tier: HostTier):
        self._tier = tier
        self._under_way: dict[int, tuple[PageSource, dict[int, bytes | None]]] = {}
        self.failed = 0

    @property
    def is_busy(self) -> bool:
        """Whether a source has slots to fill."""
        return bool(self._under_way)

    def waits_for(self, source: PageSource | None) -> bool:
        """Whether this source has."""
        return id(source) in self._under_way

    def begin(self, source: PageSource, keys: list[bytes], missing: set[bytes]) -> set[bytes]:
        """Has a source bring those of its keys that are missing here, as far as there are slots;
        which it brings."""
        wanted = [key for key in keys[: source.match(keys)] if key in missing]
        placed: list[KeyedSlot] = []
        for key in wanted:
            if (slot := self._tier.reserve()) is None:
                break
            placed.append(KeyedSlot(key, slot))
        if placed:
            self._under_way[id(source)] = (source, {slot: key for key, slot in placed})
            source.load(placed)
        return {key for key, _ in placed}

    def forget(self, keys: Sequence[bytes] | None) -> None:
        """Nobody shall find what comes for these keys, None: any key, of what is under way."""
        for _, slots in self._under_way.values():
            for slot, key in slots.items():
                if keys is None or key in keys:
                    slots[slot] = None

    def go_on(self) -> None:
        """Takes what has come."""
        for name, (source, slots) in list(self._under_way.items()):
            for slot, ok in source.done():
                key = slots.pop(slot)
                self._tier.keep(key or b"", slot, ok=ok and key is not None)
                self.failed += not ok
            if not slots:
                del self._under_way[name]
