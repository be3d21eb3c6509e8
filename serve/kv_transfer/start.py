"""Starts a server's part in transfers, where it has one."""

from collections.abc import Callable

from eagle3_jax.engine import Engine
from serve.kv_transfer.config import GIB, KVTransferConfig
from serve.kv_transfer.transfers import Transfers


def start_transfers(
    engine: Engine, config: KVTransferConfig | None, say: Callable[[str], object]
) -> Transfers | None:
    """Both ends of the role, and a line of where and through how much memory; OSError for an
    address that can't be had."""
    if config is None:
        return None
    transfers = Transfers(engine, config)
    where = ""
    if transfers.server:
        host, port = transfers.server.address
        where = f", pages at {f'[{host}]' if ':' in host else host}:{port}"
    room = engine.config.kv_offloading_bytes / GIB
    say(f"KV role {config.role}{where}; through {room:g} GiB of host memory")
    return transfers


def one_after_the_other(*calls: Callable[[], object] | None) -> Callable[[], None]:
    """Makes those of the calls that there are."""
    there = [call for call in calls if call is not None]

    def make() -> None:
        for call in there:
            call()

    return make
