"""Attach transfers to a server's requests and answers."""

import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.kv.prefix_cache import prompt_page_keys
from serve.kv_transfer.config import GIB, KVTransferConfig
from serve.kv_transfer.consumer import Puller, RemotePages, RemotePrompt
from serve.kv_transfer.producer import PageServer

RunSoon = Callable[[Callable[[], object]], object]
"""A thread-safe function that calls another one on the engine's thread between two steps."""
ID_BYTES = 16


class Transfers:
    """Both ends of transfers, depending on the role. Set `run_soon` before the first request."""

    def __init__(self, engine: Engine, config: KVTransferConfig) -> None:
        """Start the ends; OSError for an unavailable address."""
        self.config, self._engine = config, engine
        self.engine_id = config.engine_id or str(uuid.uuid4())
        self.run_soon: RunSoon = lambda call: call()
        assert engine.outgoing is not None, "roles have host memory"
        self._outgoing = engine.outgoing
        pages, fingerprint = engine.host_pages, engine.host_pages.fingerprint.hex()
        common: dict[str, Any] = {"shared_key": config.shared_key, "pull_s": config.pull_s}
        self.puller = Puller(pages, fingerprint, **common) if config.consumes else None
        self.server: PageServer | None = None
        if config.produces:
            address = config.host, config.port
            self.server = PageServer(
                address, pages, fingerprint, config.expiry_s, self._release_soon, **common
            )

    def between_steps(self) -> None:
        """Offer pages that the engine has saved; for the engine's thread."""
        for export in self._outgoing.pop_ready():
            assert self.server is not None, "only producers export"
            self.server.offer(export)

    def exported(self, request: Request) -> Request:
        """Return the request with a name under which its prompt's pages are kept."""
        assert self.server is not None, "only producers export"
        name = secrets.token_hex(ID_BYTES)
        self.server.announce(name)
        return replace(request, export_as=name)

    def fetched(self, request: Request, prompt: RemotePrompt) -> Request:
        """Return the request with another server as the source of its prompt's pages."""
        assert self.puller is not None, "only consumers fetch"
        return replace(request, source=RemotePages(prompt, self.puller))

    def answered(self, request: Request) -> dict[str, Any] | None:
        """Return the answer's statement of kept pages, or None; starts their expiry."""
        if self.server is None or request.export_as is None:
            return None
        keys = prompt_page_keys(self._engine.config, request)
        if not keys:
            self.server.release(request.export_as)
            return None
        self.server.start_expiry(request.export_as)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": self.engine_id,
            "remote_request_id": request.export_as,
            "remote_block_ids": list(range(len(keys))),
            "remote_host": self.config.host,  # Not a name's address: consumers compare it.
            "remote_port": self.server.address[1],
            "remote_last_key": keys[-1].hex(),
        }

    def ended(self, request: Request) -> None:
        """Release what a finished or cancelled request did not use."""
        if isinstance(request.source, RemotePages):
            request.source.finish()
        if request.export_as is not None and self.server is not None:
            self.server.release_unanswered(request.export_as)

    def _release_soon(self, name: str) -> None:
        self.run_soon(partial(self._outgoing.release, name))


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
