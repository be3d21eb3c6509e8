"""Bytes of a pair and its vision tower against published manifests, the engine's arrays and sums
made by hand."""

import functools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from published_pairs import PUBLISHED, draft, published, target, text_bytes, vision_bytes

from convert.fill import named_variables
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.mesh import DEVICES, shard
from eagle3_jax.vision.packing import largest_bucket
from eagle3_tools.plan.compile.compiled_round import abstract_round, device_parts, nbytes
from eagle3_tools.plan.data.gpus import MI325X, MI355X, Gpu
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.model.limits import limits
from eagle3_tools.plan.model.memory import Memory, encoding_bytes, lacking_bytes, plan_memory
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.split import check_divides, device_shape, draft_parts, target_parts
from eagle3_tools.plan.model.weights import model_bytes
from eagle3_tools.plan.options import build_parser, read_options
from eagle3_tools.plan.planner import AbstractPair, engine_config, make_plan, read_pair
from pallas_kernels import QuantFormat

MXFP4, INT4, W4A8 = "kimi-k2.5-mxfp4", "kimi-k2.5", "kimi-k2.5-w4a8"
MHA, FP8 = "kimi-k2.5-eagle3", "kimi-k2.5-eagle3-fp8"
INT4_DRAFT, MLA = "eagle3-kimik2.5-w4a8", "kimi-k2.5-eagle3-mla"
MINIMAX = "minimax-m2.5"
EXPERT_MATRICES = 60 * 384 * 3
IN_MEMORY_ONLY = {
    # The file repeats every matrix's shape in 8 bytes.
    INT4: -8 * EXPERT_MATRICES,
    MXFP4: 0,
    # The file has a factor for each matrix; in memory the rows' scales hold it.
    W4A8: -4 * EXPERT_MATRICES,
    MHA: 0,
    FP8: 0,
    # float16 scales of the outputs are float32 in memory.
    INT4_DRAFT: 2 * (3 * 8192 + 7168 + 2 * 12288 + 7168),
    MLA: 0,
    MINIMAX: 0,
}
CONFIG = EngineConfig(max_model_len=2048, max_num_seqs=64)


def plan(
    parallel: Parallelism,
    *,
    gpu: Gpu = MI355X,
    drafted: str | None = FP8,
) -> Memory:
    own = draft(drafted) if drafted else None
    return plan_memory(target(MXFP4), own, gpu, parallel, CONFIG, 0.9)


@pytest.mark.parametrize("name", IN_MEMORY_ONLY)
def test_totals_are_those_of_the_published_checkpoints(name: str) -> None:
    """To 0.1%, and what differs is known to the byte."""
    model = draft(name) if "eagle3" in name else target(name)
    found = model_bytes(model)
    assert found.nbytes == found.device_nbytes == text_bytes(name) + IN_MEMORY_ONLY[name]
    assert abs(found.nbytes / text_bytes(name) - 1) < 0.001


@pytest.mark.parametrize(
    ("drafted", "draft_devices", "numbers"),
    [
        (None, 1, 61 * 576),
        (MLA, 4, 62 * 576),
        (MHA, 1, 61 * 576 + 2 * 64 * 128),
        (MHA, 4, 61 * 576 + 2 * 16 * 128),
    ],
)
def test_latents_are_whole_and_keys_and_values_split(
    drafted: str | None, draft_devices: int, numbers: int
) -> None:
    found = plan(Parallelism(4, draft_devices), drafted=drafted)
    assert found.token_bytes("bfloat16") == 2 * numbers
    assert found.token_bytes("fp8") == numbers


def test_pools_take_what_is_left_and_no_byte_more() -> None:
    found = plan(Parallelism(4, 4))
    assert found.for_pools == found.usable - found.weights - found.state
    for dtype in ("bfloat16", "fp8"):
        page = 16 * found.token_bytes(dtype)
        assert 0 <= found.for_pools - found.pages(dtype) * page < page
        assert found.tokens(dtype) == 16 * (found.pages(dtype) - 1)
        assert found.sequences(1, dtype) == found.pages(dtype) - 1


def test_too_big_says_by_how_much_and_what_would_do() -> None:
    argv = ["--model", "unread", "--gpu", "MI355X", "--tensor-parallel-size", "1"]
    options = read_options(build_parser().parse_args(argv))
    with pytest.raises(ValueError) as refused:
        make_plan(options, AbstractPair(target(MXFP4), draft(MLA)))
    said = str(refused.value)
    assert said.startswith("1 x MI355X are too small: on each, weights take 525.3 GiB")
    whole = plan(Parallelism(), drafted=MLA)
    lacking = lacking_bytes(whole, 2048, "bfloat16") / 2**30
    assert 266 < lacking < 267
    assert f"that is {lacking:.1f} more than the 259.2 GiB that may be used" in said
    assert said.endswith("--tensor-parallel-size 4 is the least that would do")
    small = plan(Parallelism(2, 2), gpu=MI325X)
    needed = small.weights + small.state + 129 * 16 * small.token_bytes("bfloat16")
    assert lacking_bytes(small, 2048, "bfloat16") == needed - small.usable > 0
    assert small.tokens("bfloat16") == small.sequences(2048, "bfloat16") == 0
    assert lacking_bytes(plan(Parallelism(4, 4)), 2048, "bfloat16") == 0


def test_32_bits_end_where_they_must() -> None:
    """61 thousand tokens of a stacked pool, 262,144 of a whole MHA draft's keys."""
    found = {limit.what: limit for limit in limits(plan(Parallelism(4, 1)), "bfloat16")}
    stacked = found["numbers in all 61 of them, if they were one array"]
    keys = found["numbers in a pool of draft keys, values"]
    assert (stacked.most, stacked.binds) == (61_119, True)
    assert (keys.most, keys.binds) == (262_144, True)
    latents = found["numbers in a pool of target latents"]
    assert latents.most == 2**31 // 576 and latents.binds == (latents.count >= 2**31)
    wide = {limit.what: limit for limit in limits(plan(Parallelism(4, 4)), "bfloat16")}
    assert wide["numbers in a pool of draft keys, values"].most == 1_048_576
    path = plan(Parallelism()).target.largest[0]
    for devices, binds in ((1, True), (4, False)):
        shown = {limit.what: limit.binds for limit in limits(plan(Parallelism(devices)), "fp8")}
        assert shown[f"numbers in the target's {path}"] is binds, "a stack of experts"


def test_devices_that_divide_nothing_are_refused_with_those_that_would_do() -> None:
    pair = target(MXFP4), draft(FP8)
    with pytest.raises(ValueError, match=r"6 does not divide 64 attention heads.*; 1, 2, 4, 8, 16"):
        check_divides(Parallelism(6), *pair)
    with pytest.raises(ValueError, match=r"5 does not divide .* 384 experts"):
        check_divides(Parallelism(5, 1, True), *pair)
    few = published("kimi-k2.5-eagle3", "config")
    few |= {"num_attention_heads": 48, "num_key_value_heads": 6}
    grouped = draft_from_config(few, jnp.bfloat16, num_target_layers=61)
    with pytest.raises(ValueError, match="8 does not divide 6 KV heads of the draft; 1, 2 would"):
        check_divides(Parallelism(8, 8), pair[0], grouped)
    check_divides(Parallelism(8, 1), pair[0], grouped)


def device_bytes(model: Any) -> int:
    """Bytes of a device of an abstract model that lies on a mesh."""
    values = [variable.get_value() for variable in named_variables(model).values()]
    shapes = [value.sharding.shard_shape(value.shape) for value in values]
    return sum(math.prod(shape) * v.dtype.itemsize for shape, v in zip(shapes, values, strict=True))


@pytest.mark.parametrize("devices", [8, 16])
def test_a_device_keeps_one_kv_head_at_least_and_what_makes_all_of_them(devices: int) -> None:
    """MiniMax-M2.5 has 8: on 16 devices each is kept twice, as on a mesh."""
    config = published(MINIMAX, "config") | {"num_hidden_layers": 2}
    model, parallel = target_from_config(config, jnp.bfloat16), Parallelism(devices, 1, True)
    check_divides(parallel, model, None)
    memory = plan_memory(model, None, MI355X, parallel, CONFIG, 0.9)
    assert memory.token_bytes("bfloat16") == 2 * 2 * 128 * 2
    with_all = model_bytes(model, target_parts(parallel)).device_nbytes
    mesh: Any = AbstractMesh((1, devices), DEVICES)
    shard(model, mesh)
    assert device_bytes(model) == with_all
    attention: Any = model.layers[0].self_attn
    kernel = attention.k_proj.kernel.values.get_value()
    assert kernel.sharding.shard_shape(kernel.shape)[0] == (128 if devices == 8 else 1024)


def test_values_that_share_a_scale_are_not_parted() -> None:
    """2048 columns of an expert are 64 groups: 64 devices hold one each, 128 none whole."""
    axes = ("expert", "expert_mlp", "embed")
    down = QuantizedKernel((384, 2048, 7168), axes, QuantFormat("mxfp4")).values
    assert device_shape("down", down, target_parts(Parallelism(64))) == (384, 7168, 16)
    with pytest.raises(ValueError, match="evenly over 128 devices, in groups of 16"):
        device_shape("down", down, target_parts(Parallelism(128)))


@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("devices", [1, 4])
def test_a_plan_splits_as_the_mesh_does(devices: int, expert_parallel: bool) -> None:
    """Arrays and rows of the pools, of the abstract pair on a mesh without devices."""
    sizes = (1, devices) if expert_parallel else (devices, 1)
    mesh: Any = AbstractMesh(sizes, DEVICES)
    parallel = Parallelism(devices, devices, expert_parallel)
    text = published(MXFP4, "config")["text_config"] | {"num_hidden_layers": 2}
    config = {**published(MXFP4, "config"), "text_config": text}
    own = draft_from_config(published(FP8, "config"), jnp.bfloat16, num_target_layers=61)
    pair = target_from_config(config, jnp.bfloat16), own
    expected = [model_bytes(pair[0], target_parts(parallel)).device_nbytes]
    expected.append(model_bytes(pair[1], draft_parts(parallel)).device_nbytes)
    memory = plan_memory(*pair, MI355X, parallel, CONFIG, 0.9)
    for model in pair:
        shard(model, mesh)
    assert list(map(device_bytes, pair)) == expected
    numbers = 0
    for model in pair:
        for row, split in zip(model.pool_rows, model.pool_splits, strict=True):
            there = NamedSharding(mesh, PartitionSpec(*split))
            numbers += math.prod(there.shard_shape(row))
    assert memory.token_bytes("fp8") == numbers


VISION = VisionConfig.from_hf(published(MXFP4, "config"))


@functools.cache
def planned_memory(name: str, *more: str) -> Memory:
    flags = ["--model", str(PUBLISHED / f"{name}.config.json"), "-tp=4", *more]
    options = read_options(build_parser().parse_args(flags))
    return make_plan(options, read_pair(options)).memory


def test_every_device_holds_all_published_bytes_of_the_tower_unless_images_are_left_out() -> None:
    whole, text = planned_memory(MXFP4), planned_memory(MXFP4, "--language-model-only")
    assert whole.vision and whole.vision.device_nbytes == vision_bytes(MXFP4) == 942_287_840
    assert text.vision is None and text.encoding_bytes == 0
    assert planned_memory("minimax-m2.5").vision is None
    assert whole.weights - text.weights == 942_287_840
    # A chunk's own tokens and, of two images, the rest; a row of scratch. In bfloat16.
    kept = (EngineConfig().prefill_chunk + 2 * VISION.most_image_tokens + 1) * 7168 * 2
    assert VISION.most_image_tokens >= 16_900 // 4 and whole.state - text.state == kept
    assert text.for_pools - whole.for_pools == 942_287_840 + kept
    assert whole.pair_weights == text.weights and whole.tokens("fp8") < text.tokens("fp8")


@pytest.mark.parametrize("more", [(), ("--language-model-only",)])
def test_a_round_that_is_compiled_has_the_planned_state(more: tuple[str, ...]) -> None:
    """Beside the pools, which the plan has as large as the device allows, here of 129 pages."""
    draft = PUBLISHED / "kimi-k2.5-eagle3-fp8.config.json"
    flags = ["--model", str(PUBLISHED / f"{MXFP4}.config.json"), "--draft", str(draft), *more]
    options = read_options(build_parser().parse_args([*flags, "-tp=4"]))
    pair = read_pair(options)
    config = replace(engine_config(options, pair), num_pages=129)
    assert pair.draft
    models, aux = (pair.target, pair.draft), pair.draft.config.aux_layer_ids
    found = abstract_round("gfx950", *models, config, aux, vision=pair.vision)
    # On one device, as the round is without a mesh.
    memory = plan_memory(*models, MI355X, Parallelism(), config, 0.9, vision=pair.vision)
    pools = 129 * memory.page_bytes("bfloat16")
    assert nbytes(device_parts(found.shapes[found.state])) == memory.state + pools


def test_the_largest_image_is_encoded_in_less_than_a_twentieth_of_what_is_not_planned() -> None:
    """16,900 patches, of a square; a tenth of 288 GiB is left for temporaries."""
    assert largest_bucket(VISION) == 20_480 >= 16_900
    found = planned_memory(MXFP4)
    assert found.encoding_bytes == encoding_bytes(VISION, 20_480) > 16_900 * 1152 * 2 * 4
    assert found.encoding_bytes < (found.total - found.usable) / 20


def test_a_checkpoints_own_limits_make_its_arrays(tmp_path: Path) -> None:
    """The engine's largest array and the plan's are one, whatever preprocessor_config.json says."""
    (tmp_path / "config.json").write_text(json.dumps(published(MXFP4, "config")))
    limits = {"in_patch_limit": 1000, "patch_limit_on_one_side": 40}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"media_proc_cfg": limits}))
    small = VisionConfig.from_hf(published(MXFP4, "config"), {"media_proc_cfg": limits})
    layout = ImageLayout(small, capacity=10**6)
    assert layout.most_patches == largest_bucket(small) == layout.sizes[-1] < largest_bucket(VISION)
    options = read_options(build_parser().parse_args(["--model", str(tmp_path), "-tp=4"]))
    found = make_plan(options, read_pair(options)).memory
    assert found.encoding_bytes == encoding_bytes(VISION, layout.most_patches)
