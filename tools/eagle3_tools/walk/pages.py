"""Move pages to the host's memory and back on this process's device, and compare their bits.

python -m eagle3_tools.walk.pages prints one JSON object: the kinds of memory that held the pages,
whether the host reads their bytes at once, and whether all pools' pages came back unchanged, into
pools that were written in place.
"""

import json
import sys
from typing import Any

import jax
import numpy as np

from eagle3_jax.engine import Engine, EngineConfig
from eagle3_tools.bench.gpu.worker import embedded_pair

PAGES, SLOTS = [3, 1, 6], [5, 0, 2]
ROOM = 4 << 20


def main() -> int:
    """Fill the pools with noise, save pages, clear the pools and load the pages."""
    pair = embedded_pair()
    config = EngineConfig(
        3, 64, 1, page_size=16, num_pages=8, batch_buckets=(1,), kv_offloading_bytes=ROOM
    )
    engine = Engine(pair.target, pair.draft, config, eos_token_ids=pair.eos_token_ids)
    runner = engine._runner
    runner.executor.state = jax.tree.map(_noise, runner.executor.state)
    before = _pools(runner.executor.state)
    runner.save_pages(PAGES, SLOTS)
    pages = runner.executor.pages
    read = b"".join(pages.bytes_of(slot).tobytes() for slot in SLOTS)
    held = b"".join(pool[page].tobytes() for page in PAGES for pool in before)
    runner.executor.state = jax.tree.map(_zeros, runner.executor.state)
    kinds = {page.sharding.memory_kind for page in pages._saved.values()}
    runner.stage_pages(SLOTS)
    donated = runner.executor.state.target_pools
    runner.load_pages(PAGES[::-1], SLOTS[::-1])
    in_place = all(x.is_deleted() for x in jax.tree.leaves(donated) if x.ndim > 1)
    after = _pools(runner.executor.state)
    equal = all(np.array_equal(a[PAGES], b[PAGES]) for a, b in zip(before, after, strict=True))
    rest = [page for page in range(1, config.num_pages or 0) if page not in PAGES]
    cleared = not any(pool[rest].any() for pool in after)
    found = {"pools": len(after), "equal": equal, "others_cleared": cleared}
    print(json.dumps(found | {"kinds": sorted(kinds), "in_place": in_place, "read": read == held}))
    holds = equal and cleared and in_place and read == held
    return 0 if holds and kinds == {"pinned_host"} else 1


def _noise(x: Any) -> Any:
    """Return other values in every element of a pool; rows of slots stay."""
    if x.ndim < 3 or x.dtype == bool:
        return x
    drawn = np.random.default_rng(x.size).normal(size=x.shape).astype(x.dtype)
    return jax.device_put(drawn, x.sharding)


def _zeros(x: Any) -> Any:
    return jax.device_put(np.zeros(x.shape, x.dtype), x.sharding)


def _pools(state: Any) -> list[np.ndarray]:
    pools = [x for x in jax.tree.leaves((state.target_pools, state.draft_pools)) if x.ndim > 1]
    return [np.asarray(pool).view(np.uint8) for pool in pools]


if __name__ == "__main__":
    sys.exit(main())
