"""Latent attention by other libraries: FlashMLA on the same pages, PyTorch without pages."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax.numpy as jnp
import torch

from eagle3_tools.kernel_bench.peers.products import tensor
from eagle3_tools.kernel_cases.latent_attention import SCALE

Arguments = tuple[Any, ...]
Peer = Callable[..., Any]


def flash_mla(arguments: Arguments) -> Peer:
    """Run github.com/deepseek-ai/FlashMLA, dense, with pages of 64 rows. The first run makes its
    schedule and is not timed. Raises ImportError if it is not installed."""
    library = import_module("flash_mla")
    q_latent, q_rope, paged = arguments[:3]
    _check_types(q_latent, paged.pools[0])
    query = tensor(jnp.concatenate([q_latent, q_rope], axis=-1))
    pool = tensor(paged.pools[0])[:, :, None]
    table = tensor(paged.page_table)
    lengths = tensor(paged.positions.max(1) + 1)
    schedule = library.get_mla_metadata()[0]
    width = q_latent.shape[-1]
    return lambda: library.flash_mla_with_kvcache(
        query, pool, table, lengths, width, schedule, softmax_scale=SCALE, causal=True
    )


def two_products(arguments: Arguments) -> Peer:
    """Run two products and a softmax on a context gathered beforehand; no mask."""
    query, rows, latents = _context(arguments)
    return lambda: torch.softmax(query @ rows.transpose(1, 2) * SCALE, -1) @ latents


def flex_attention(arguments: Arguments) -> Peer:
    """Run compiled flex_attention on a context gathered beforehand; no mask."""
    from torch.nn.attention.flex_attention import flex_attention

    query, rows, latents = (x[:, None] for x in _context(arguments))
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(query, rows, latents, scale=SCALE)


def _context(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [batch, rows * heads, width], the context without pages, and its latents."""
    q_latent, q_rope, paged = arguments[:3]
    (pool,) = paged.pools
    _check_types(q_latent, pool)
    query = jnp.concatenate([q_latent, q_rope], axis=-1)
    rows = jnp.take(pool, paged.page_table, axis=0).reshape(query.shape[0], -1, query.shape[-1])
    query = query.reshape(query.shape[0], -1, query.shape[-1])
    return tensor(query), tensor(rows), tensor(rows[..., : q_latent.shape[-1]])


def _check_types(query: Any, pool: Any) -> None:
    if pool.dtype != query.dtype:
        raise NotImplementedError(f"queries of {query.dtype} on a context of {pool.dtype}")
