"""Start a server's transfers, if it has a role."""

from collections.abc import Callable

from eagle3_jax.engine import Engine
from serve.kv_transfer.config import GIB, KVTransferConfig
from serve.kv_transfer.transfers import Transfers


def start_transfers(
    engine: Engine, config: KVTransferConfig | None, notify: Callable[[str], object]
) -> Transfers | None:
    """Start both ends of the role and report addresses and memory; OSError if unavailable."""
    if config is None:
        return None
    transfers = Transfers(engine, config)
    where = ""
    if transfers.server:
        host, port = transfers.server.address
        where = f", pages at {f'[{host}]' if ':' in host else host}:{port}"
    room = engine.config.kv_offloading_bytes / GIB
    notify(f"KV role {config.role}{where}; through {room:g} GiB of host memory")
    return transfers


def call_in_order(*calls: Callable[[], object] | None) -> Callable[[], None]:
    """Return a function that makes all calls that are not None."""
    there = [call for call in calls if call is not None]

    def make() -> None:
        for call in there:
            call()

    return make
