"""Loading reports the place of caches, for each kind of attention."""

from typing import Any

import pytest
from wide_pair import DRAFTS, minimax_of_two_kv_heads, wide_minimax, wide_target

from eagle3_jax.engine import EngineConfig
from eagle3_jax.mesh import make_mesh, shard
from serve.pair.notices import notify_of_divided_contexts

HEADS = "divided by KV heads over 4 devices, which leaves no context to divide"
SHARED = "divided by 2 KV heads, each whole on 2 devices"
"""Where contexts are not divided; of all others nothing is said then."""
BOTH = "divided by 2 KV heads, and neighbours divide each context, 2 at a time"


@pytest.mark.parametrize(
    ("make", "drafted", "size", "split", "target", "draft"),
    [
        (wide_target, "grouped", 4, True, "neighbours divide each context, 4 at a time", HEADS),
        (wide_target, "of two KV heads", 4, True, "neighbours divide each context, 4 at a", BOTH),
        (minimax_of_two_kv_heads, "grouped", 2, False, BOTH, "whole on every device"),
        (wide_minimax, "of two KV heads", 2, True, HEADS, BOTH),
    ],
)
def test_each_cache_is_said_to_lie_where_it_does(
    make: Any, drafted: str, size: int, split: bool, target: str, draft: str
) -> None:
    pair, said, mesh = (model := make(), DRAFTS[drafted](model)), [], make_mesh(4)
    for part in pair if split else pair[:1]:
        shard(part, mesh)
    config = EngineConfig(page_size=8, decode_context_parallel_size=size)
    notify_of_divided_contexts(*pair, config, said.append)
    found = iter(said)
    for name, how in (("target", target), ("draft", draft)):
        line = next(found)
        assert line.startswith(f"KV cache of the {name}: {how}")
        assert line.endswith(f"a page is {8 * size} tokens")
    said.clear()
    notify_of_divided_contexts(*pair, EngineConfig(page_size=8), said.append)
    shared = [name for name, how in (("target", target), ("draft", draft)) if how == BOTH]
    assert said == [f"KV cache of the {name}: {SHARED}; a page is 8 tokens" for name in shared]
