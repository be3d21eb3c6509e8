"""The tiers of an engine."""

from typing import NamedTuple, Protocol

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.tiers.disk_tier import DiskTier, disk_tier
from eagle3_jax.engine.kv.tiers.host_tier import HostTier, host_tier
from eagle3_jax.engine.kv.tiers.tier import PageBytes, PageCopies


class HostPages(PageCopies, PageBytes, Protocol):
    """Both sides of the host's memory for pages (`eagle3_jax.engine.programs.runner.Runner`)."""


class TiersBelow(NamedTuple):
    """host: keeps pages that the cache has no room for. disk: keeps what has come to the host."""

    host: HostTier | None = None
    disk: DiskTier | None = None


NO_TIERS = TiersBelow()


def tiers_below(
    pages: HostPages, config: EngineConfig, events: KVEventLog | None, *, alone: bool
) -> TiersBelow:
    """Those of the configuration; alone: no other process holds a part of the pair.

    Raises ValueError where host memory or directory can't be used.
    """
    host = host_tier(pages, config, events)
    return TiersBelow(host, disk_tier(pages, config, events, alone=alone))
