"""The tower of images in the memory plan, and what makes its program at full size fail."""

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from published_pairs import PUBLISHED, published, vision_bytes

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.vision.packing import largest_bucket
from eagle3_tools.aot import Program
from eagle3_tools.aot.amd.code_object import GpuKernel
from eagle3_tools.plan.compile.compiled_round import abstract_round, device_parts, nbytes
from eagle3_tools.plan.compile.tower import Job, tower_problems
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.model.memory import Memory, encoding_bytes, plan_memory
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.options import build_parser, read_options
from eagle3_tools.plan.planner import engine_config, make_plan, read_pair

KIMI = "kimi-k2.5-mxfp4"
CONFIG = VisionConfig.from_hf(published(KIMI, "config"))
HLO = """HloModule jit_encode

ENTRY %main (Arg_0: bf16[4096,1152]) -> bf16[4096,1152] {
  ROOT %hidden = bf16[4096,1152]{1,0} fusion(%Arg_0), kind=kLoop, calls=%fused_computation
}
"""
PROGRAM = Program("gfx950", HLO, [], 1000, 800, 500)
WEIGHT = jax.ShapeDtypeStruct((1152, 4304), jnp.bfloat16)


@functools.cache
def memory(name: str, *more: str) -> Memory:
    flags = ["--model", str(PUBLISHED / f"{name}.config.json"), "-tp=4", *more]
    options = read_options(build_parser().parse_args(flags))
    return make_plan(options, read_pair(options)).memory


def test_every_device_holds_all_published_bytes_of_the_tower_unless_images_are_left_out() -> None:
    whole, text = memory(KIMI), memory(KIMI, "--language-model-only")
    assert whole.vision and whole.vision.device_nbytes == vision_bytes(KIMI) == 942_287_840
    assert text.vision is None and text.encoding_bytes == 0
    assert whole.weights - text.weights == 942_287_840
    # A chunk's own tokens and, of two images, the rest; a row of scratch. In bfloat16.
    kept = (EngineConfig().prefill_chunk + 2 * CONFIG.most_image_tokens + 1) * 7168 * 2
    assert CONFIG.most_image_tokens >= 16_900 // 4 and whole.state - text.state == kept
    assert text.for_pools - whole.for_pools == 942_287_840 + kept
    assert whole.pair_weights == text.weights and whole.tokens("fp8") < text.tokens("fp8")


@pytest.mark.parametrize("more", [(), ("--language-model-only",)])
def test_a_round_that_is_compiled_has_the_planned_state(more: tuple[str, ...]) -> None:
    """Beside the pools, which the plan has as large as the device allows, here of 129 pages."""
    draft = PUBLISHED / "kimi-k2.5-eagle3-fp8.config.json"
    flags = ["--model", str(PUBLISHED / f"{KIMI}.config.json"), "--draft", str(draft), *more]
    options = read_options(build_parser().parse_args([*flags, "-tp=4"]))
    pair = read_pair(options)
    config = replace(engine_config(options, pair), num_pages=129)
    assert pair.draft
    models, aux = (pair.target, pair.draft), pair.draft.config.aux_layer_ids
    found = abstract_round("gfx950", *models, config, aux, vision=pair.vision)
    # On one device, as the round is without a mesh.
    planned = plan_memory(*models, GPUS["MI355X"], Parallelism(), config, 0.9, vision=pair.vision)
    pools = 129 * planned.page_bytes("bfloat16")
    assert nbytes(device_parts(found.shapes[found.state])) == planned.state + pools


def test_a_target_without_images_has_no_tower() -> None:
    assert memory("minimax-m2.5").vision is None


def test_the_largest_image_is_encoded_in_less_than_a_twentieth_of_what_is_not_planned() -> None:
    """16,900 patches, of a square; a tenth of 288 GiB is left for temporaries."""
    assert largest_bucket(CONFIG) == 20_480 >= 16_900
    found = memory(KIMI)
    assert found.encoding_bytes == encoding_bytes(CONFIG, 20_480) > 16_900 * 1152 * 2 * 4
    assert found.encoding_bytes < (found.total - found.usable) / 20


def test_a_checkpoints_own_limits_make_its_arrays(tmp_path: Path) -> None:
    """The engine's largest array and the plan's are one, whatever preprocessor_config.json says."""
    (tmp_path / "config.json").write_text(json.dumps(published(KIMI, "config")))
    limits = {"in_patch_limit": 1000, "patch_limit_on_one_side": 40}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": limits}))
    small = VisionConfig.from_hf(published(KIMI, "config"), {"media_proc_cfg": limits})
    layout = ImageLayout(small, capacity=10**6)
    assert layout.most_patches == largest_bucket(small) == layout.sizes[-1] < largest_bucket(CONFIG)
    options = read_options(build_parser().parse_args(["--model", str(tmp_path), "-tp=4"]))
    found = make_plan(options, read_pair(options)).memory
    assert found.encoding_bytes == encoding_bytes(CONFIG, layout.most_patches)


def problems(per_block: float = 8, **changes: Any) -> list[str]:
    job = Job(Path(), "gfx950", 4096)
    return list(tower_problems(job, CONFIG, replace(PROGRAM, **changes), [WEIGHT], 500, per_block))


def test_a_tower_as_planned_has_no_problems() -> None:
    assert problems() == problems(temporary_bytes=505) == []


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"per_block": 9}, "9 launches a block, 8 would do"),
        ({"temporary_bytes": 506}, "506 B of temporaries, 500 were planned"),
        ({"hlo": HLO.replace("4096,1152", "4304,1152")}, "as large as a weight"),
        ({"kernels": [GpuKernel("k", 64, 3, 0, 0, 0, 256, {})]}, "k: 3 VGPR spills"),
    ],
)
def test_each_bound_that_is_broken_is_said(changes: dict[str, Any], problem: str) -> None:
    (said,) = problems(**changes)
    assert problem in said
