"""Compare MoonViT with transformers' tower: blocks of released widths, one image, one thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from convert.equivalence.compare import require_transformers
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.vision.item import ImageItem
from eagle3_jax.vision.packing import pack
from eagle3_tools.bench.common.spread import Spread, in_turn
from eagle3_tools.plan.data.kimi_k25 import VISION

LAYERS = 4
"""Blocks instead of the released 27: all cost the same, and two copies of 27 need 3.3 GB."""
SIDES = (224, 448)
"""Side lengths of the square images in pixels."""
PRODUCT = 2048
TOWER = replace(VISION, num_hidden_layers=LAYERS, text_hidden_size=64)


@dataclass(frozen=True)
class TowerResult:
    """Seconds of `layers` blocks with embedding and last norm for one image, ours and the peer's.

    `flops` is the work of such a pass, `flops_per_s` the rate of a float32 product of 2048 x 2048.
    """

    patches: int
    layers: int
    ours: Spread
    peer: Spread
    flops: int
    flops_per_s: Spread

    @property
    def ratio(self) -> float:
        """The peer's time over ours."""
        return self.peer.median / self.ours.median

    @property
    def floor_share(self) -> float:
        """The fraction of our time that the arithmetic alone would take."""
        return self.flops / self.flops_per_s.median / self.ours.median


def compare_towers(repetitions: int) -> list[TowerResult]:
    """Time both towers on the same images, alternating; raise ImportError without torch."""
    config, product, results = TOWER, _product(), []
    for side in SIDES:
        patches = (side // config.patch_size) ** 2
        sides = {"ours": _ours(config, side), "peer": _peer(config, side), "product": product}
        for run in sides.values():
            run()
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for name in in_turn(sides, repetitions):
            start = time.perf_counter()
            sides[name]()
            samples[name].append(time.perf_counter() - start)
        rates = [2 * PRODUCT**3 / seconds for seconds in samples["product"]]
        ours, peer = (Spread.of(samples[name]) for name in ("ours", "peer"))
        layers, work = config.num_hidden_layers, flops_of(config, patches)
        rate = Spread.of(rates, rates=True)
        results.append(TowerResult(patches, layers, ours, peer, work, rate))
    return results


def flops_of(config: VisionConfig, patches: int) -> int:
    """Count the FLOPs of one image: products with weights, attention scores, weighted values."""
    hidden, wide = config.hidden_size, config.intermediate_size
    weights = hidden * (4 * hidden + 2 * wide)
    embedding = 3 * config.patch_size**2 * hidden
    layers = config.num_hidden_layers * (weights + 2 * patches * hidden)
    return 2 * patches * (embedding + layers)


def _ours(config: VisionConfig, side: int) -> Callable[[], Any]:
    vision = VisionModel(config, rngs=nnx.Rngs(0))
    rows = side // config.patch_size
    patches = np.zeros((rows**2, 3, config.patch_size, config.patch_size), np.uint8)
    packed = pack([ImageItem(patches, (1, rows, rows), rows**2 // config.token_patches)], config)
    graph, state = nnx.split(vision.vision_tower)
    run = jax.jit(lambda state, *inputs: nnx.merge(graph, state)(*inputs))
    return lambda: run(state, packed.patches, packed.places).block_until_ready()


def _peer(config: VisionConfig, side: int) -> Callable[[], Any]:
    require_transformers()
    import torch
    from transformers.models.kimi_k25.configuration_kimi_k25 import Kimi_K25VisionConfig
    from transformers.models.kimi_k25.modeling_kimi_k25 import Kimi_K25VisionModel

    torch.set_num_threads(1)
    settings: dict[str, Any] = {
        "num_hidden_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "attn_implementation": "sdpa",
    }
    tower: Any = Kimi_K25VisionModel(Kimi_K25VisionConfig(**settings)).eval()
    rows, size = side // config.patch_size, config.patch_size
    pixels, grid = torch.zeros(rows**2, 3, size, size), torch.tensor([[1, rows, rows]])

    def run() -> Any:
        with torch.inference_mode():
            return tower(pixels, grid_thw=grid)

    return run


def _product() -> Callable[[], Any]:
    matrix = jnp.ones((PRODUCT, PRODUCT), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    return lambda: multiply(matrix, matrix).block_until_ready()
