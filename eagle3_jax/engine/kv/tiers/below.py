"""Construction of an engine's memory tiers."""

from typing import NamedTuple, Protocol

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.tiers.disk_tier import DiskTier, disk_tier
from eagle3_jax.engine.kv.tiers.host_tier import HostTier, host_tier
from eagle3_jax.engine.page_tiers import PageBytes, PageCopies


class HostPages(PageCopies, PageBytes, Protocol):
    """Access to host memory for pages (`eagle3_jax.engine.programs.runner.Runner`)."""


class LowerTiers(NamedTuple):
    """The host tier, for pages beyond the cache's capacity, and the disk tier below it."""

    host: HostTier | None = None
    disk: DiskTier | None = None


NO_TIERS = LowerTiers()


def make_lower_tiers(
    pages: HostPages, config: EngineConfig, events: KVEventLog | None, *, alone: bool
) -> LowerTiers:
    """Make the configured tiers; raise ValueError if host memory or directory cannot be used.

    `alone` says that no other process holds a part of the pair.
    """
    host = host_tier(pages, config, events)
    return LowerTiers(host, disk_tier(pages, config, events, alone=alone))
