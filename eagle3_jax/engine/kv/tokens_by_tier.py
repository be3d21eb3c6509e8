"""Prompt tokens with cached KV, by the tier they were found in."""

from typing import NamedTuple


class TokensByTier(NamedTuple):
    """Tokens found on the devices, in host memory, on disk and on another machine."""

    device: int = 0
    host: int = 0
    disk: int = 0
    remote: int = 0

    @property
    def total(self) -> int:
        """Tokens of all tiers."""
        return sum(self)

    @property
    def below(self) -> int:
        """Tokens of all tiers except the devices' memory, to which they were copied."""
        return self.total - self.device

    def plus(self, other: "TokensByTier") -> "TokensByTier":
        """Return the sums per tier."""
        return TokensByTier(*map(sum, zip(self, other, strict=True)))


NO_TOKENS = TokensByTier()
