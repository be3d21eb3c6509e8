"""Prompt tokens whose KV need not be computed, by where it lay."""

from typing import NamedTuple


class TokensByTier(NamedTuple):
    """Tokens found on the devices, in the host's memory, on a disk and on another machine."""

    device: int = 0
    host: int = 0
    disk: int = 0
    remote: int = 0

    @property
    def total(self) -> int:
        """Of all tiers."""
        return sum(self)

    @property
    def below(self) -> int:
        """Of all tiers but the devices' own memory: these had to be brought there."""
        return self.total - self.device

    def plus(self, other: "TokensByTier") -> "TokensByTier":
        """Both, tier by tier."""
        return TokensByTier(*map(sum, zip(self, other, strict=True)))


NO_TOKENS = TokensByTier()
