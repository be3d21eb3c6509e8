"""Answer with an engine on this process's devices; print what a fault of the GPU's path changes.

python -m eagle3_tools.walk.answer DEVICES divides the embedded pair over so many devices. Programs
compile at their first run, so that few do. It prints one JSON object: the tokens of two greedy
answers, whether the pools were written in place, how many arrays have a pool's pages, and whether
the first device holds more than its arrays.
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.drive import drive
from serve.demo import demo_draft_dir, demo_target_dir
from serve.options.checkpoint import DEFAULTS
from serve.options.parallel import ParallelOptions
from serve.pair.loading import load_pair

PROMPTS = "What is 95 + 61?", "The river that runs through Velmora is the Tarn. " * 4
"""One chunk and less than a page; two chunks and several pages."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
_ROOM = 1 << 20
"""Bytes beside arrays: XLA's constants."""


def main() -> int:
    devices = int(sys.argv[1])
    parallel = ParallelOptions(tensor_parallel_size=devices)
    pair = load_pair(Path(demo_target_dir()), Path(demo_draft_dir()), DEFAULTS, parallel)
    config = EngineConfig(3, 192, 1, page_size=16, num_pages=26, batch_buckets=(1,))
    engine = Engine(pair.target, pair.draft, config, eos_token_ids=pair.eos_token_ids)
    pools = _pools(engine)
    texts = [pair.tokenizer.encode(prompt) for prompt in PROMPTS]
    requests = [Request(str(k), ids, GREEDY) for k, ids in enumerate(texts)]
    tokens = [list(drive(engine, [r])[r.request_id].token_ids) for r in requests]
    donated = all(pool.is_deleted() for pool in pools)
    arrays = sum(array.shape[:1] == (config.pool_pages,) for array in jax.live_arrays())
    found = {"tokens": tokens, "in_place": donated, "pool_arrays": arrays}
    print(json.dumps(found | {"more_held": _more_held()}))
    return 0


def _pools(engine: Engine) -> list[Any]:
    state = engine._runner.executor.state
    return [x for x in jax.tree.leaves((state.target_pools, state.draft_pools)) if x.ndim > 1]


def _more_held() -> bool | None:
    """Return whether a device holds more bytes than arrays need, or None if it cannot say."""
    live = sum(
        shard.data.nbytes
        for array in jax.live_arrays()
        for shard in array.addressable_shards
        if shard.device == jax.devices()[0]
    )
    stats = jax.devices()[0].memory_stats()
    return None if stats is None else stats["bytes_in_use"] > live + _ROOM


if __name__ == "__main__":
    sys.exit(main())
