"""Bytes of a pair against published manifests and against sums made by hand."""

import math
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from published_pairs import draft, published, target, text_bytes

from convert.fill import named_variables
from convert.from_config import draft_from_config, target_from_config
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.mesh import DEVICES, shard
from eagle3_tools.plan.data.gpus import GPUS, MI325X, MI355X, Gpu
from eagle3_tools.plan.model.limits import limits
from eagle3_tools.plan.model.memory import Memory, lacking_bytes, plan_memory
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.split import check_divides, device_shape, draft_parts, target_parts
from eagle3_tools.plan.model.weights import model_bytes
from eagle3_tools.plan.options import build_parser, read_options
from eagle3_tools.plan.planner import AbstractPair, make_plan
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
    config: EngineConfig = CONFIG,
    utilization: float = 0.9,
) -> Memory:
    own = draft(drafted) if drafted else None
    return plan_memory(target(MXFP4), own, gpu, parallel, config, utilization)


@pytest.mark.parametrize("name", IN_MEMORY_ONLY)
def test_totals_are_those_of_the_published_checkpoints(name: str) -> None:
    """To 0.1%, and what differs is known to the byte."""
    model = draft(name) if "eagle3" in name else target(name)
    found = model_bytes(model)
    assert found.nbytes == found.device_nbytes == text_bytes(name) + IN_MEMORY_ONLY[name]
    assert abs(found.nbytes / text_bytes(name) - 1) < 0.001


def test_a_device_of_four_holds_what_the_rules_say() -> None:
    """amd/Kimi-K2.5-MXFP4, from the published widths alone."""
    mlps = (60 * 385 * 2048 + 18432) * 3 * 7168 * 17 // 32
    split_attention = 61 * 2 * (1536 * 12288 + 512 * 64 * 256 + 8192 * 7168)
    whole_attention = 61 * 2 * (7168 * (1536 + 576) + 1536 + 512)
    norms = 2 * 7168 * (2 * 61 + 1)
    routers = 60 * 384 * (2 * 7168 + 4)
    vocabulary = 2 * 2 * 163840 * 7168
    split = mlps + split_attention + vocabulary
    whole = whole_attention + norms + routers
    found = model_bytes(target(MXFP4), target_parts(Parallelism(4)))
    assert found.device_nbytes == split // 4 + whole
    assert found.nbytes == split + whole == text_bytes(MXFP4)


@pytest.mark.parametrize("devices", [2, 8])
def test_expert_parallelism_moves_experts_and_keeps_their_bytes(devices: int) -> None:
    sizes = [
        model_bytes(target(MXFP4), target_parts(Parallelism(devices, 1, ep)))
        for ep in (False, True)
    ]
    assert sizes[0].device_nbytes == sizes[1].device_nbytes


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


def test_a_grouped_targets_pools_are_split_over_devices_too() -> None:
    found = plan_memory(target(MINIMAX), None, MI355X, Parallelism(4), CONFIG, 0.9)
    assert found.token_bytes("fp8") == 62 * 2 * 8 * 128 // 4


def test_pools_take_what_is_left_and_no_byte_more() -> None:
    found = plan(Parallelism(4, 4))
    assert found.for_pools == found.usable - found.weights - found.state
    for dtype in ("bfloat16", "fp8"):
        page = 16 * found.token_bytes(dtype)
        assert 0 <= found.for_pools - found.pages(dtype) * page < page
        assert found.tokens(dtype) == 16 * (found.pages(dtype) - 1)
        assert found.sequences(1, dtype) == found.pages(dtype) - 1


def test_longer_sequences_less_memory_and_bigger_drafts_leave_fewer_sequences() -> None:
    found = plan(Parallelism(4, 4))
    counts = [found.sequences(length, "bfloat16") for length in (512, 1024, 2048, 262144)]
    assert counts == sorted(counts, reverse=True) and counts[0] > counts[-1] > 0
    assert found.sequences(2048, "fp8") >= 2 * found.sequences(2048, "bfloat16")
    tokens = [plan(Parallelism(4, 4), utilization=x).tokens("bfloat16") for x in (0.6, 0.8, 1)]
    assert tokens == sorted(tokens)
    whole, split = (plan(Parallelism(4, n)).tokens("bfloat16") for n in (1, 4))
    assert whole < split < plan(Parallelism(4, 4), drafted=None).tokens("bfloat16")


def test_more_devices_hold_less_each() -> None:
    weights = [plan(Parallelism(n, n)).weights for n in (1, 2, 4, 8, 16)]
    assert weights == sorted(weights, reverse=True)
    assert weights[0] > 558e9 and weights[2] < 145e9


def test_slots_are_counted_as_the_engine_makes_them() -> None:
    """Rows of the vocabulary (bias, counts, what the prompt held), aux states, little else."""
    few, many = (plan(Parallelism(4), config=replace(CONFIG, max_num_seqs=n)) for n in (8, 72))
    vocabulary = 163840 * (4 + 4 + 1)
    aux = 4 * 3 * 7168 * 2
    assert 0 <= (many.state - few.state) - 64 * (vocabulary + aux) < 64 * 16384


def test_a_model_that_lacks_nothing_fits_and_one_that_is_too_big_says_by_how_much() -> None:
    fitting = plan(Parallelism(4, 4))
    assert lacking_bytes(fitting, 2048, "bfloat16") == 0
    small = plan(Parallelism(2, 2), gpu=MI325X)
    needed = small.weights + small.state + 129 * 16 * small.token_bytes("bfloat16")
    assert lacking_bytes(small, 2048, "bfloat16") == needed - small.usable > 0
    assert small.tokens("bfloat16") == small.sequences(2048, "bfloat16") == 0


def test_too_big_says_by_how_much_and_what_would_do() -> None:
    argv = ["--model", "unread", "--gpu", "MI355X", "--tensor-parallel-size", "1"]
    options = read_options(build_parser().parse_args(argv))
    with pytest.raises(ValueError) as refused:
        make_plan(options, AbstractPair(target(MXFP4), draft(MLA)))
    said = str(refused.value)
    assert said.startswith("1 x MI355X are too small: on each, weights take 525.3 GiB")
    whole = plan(Parallelism(), drafted=MLA)
    lacking = lacking_bytes(whole, 2048, "bfloat16") / 2**30
    assert (
        266 < lacking < 267
        and f"that is {lacking:.1f} more than the 259.2 GiB that may be used" in said
    )
    assert said.endswith("--tensor-parallel-size 4 is the least that would do")


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


def test_a_stack_of_experts_outgrows_32_bits_on_one_device() -> None:
    whole, quarter = (plan(Parallelism(n, n)) for n in (1, 4))
    path = whole.target.largest[0]
    assert whole.target.largest[1] == 384 * 7168 * 2048 // 2
    for memory, binds in ((whole, True), (quarter, False)):
        found = {limit.what: limit.binds for limit in limits(memory, "fp8")}
        assert found[f"numbers in the target's {path}"] is binds


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
    values = [variable.get_value() for variable in named_variables(model).values()]
    parts = [value.sharding.shard_shape(value.shape) for value in values]
    found = zip(parts, values, strict=True)
    assert sum(math.prod(part) * v.dtype.itemsize for part, v in found) == with_all
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


def test_a_device_shows_less_memory_than_its_name_says() -> None:
    named = {"MI355X": 288, "MI325X": 256, "MI300X": 192, "H200": 141}
    for name, gib in named.items():
        assert 0.98 * gib < GPUS[name].memory / 2**30 <= gib


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
    for model, nbytes in zip(pair, expected, strict=True):
        values = [variable.get_value() for variable in named_variables(model).values()]
        parts = [value.sharding.shard_shape(value.shape) for value in values]
        found = zip(parts, values, strict=True)
        assert sum(math.prod(part) * v.dtype.itemsize for part, v in found) == nbytes
    numbers = 0
    for model in pair:
        for row, split in zip(model.pool_rows, model.pool_splits, strict=True):
            there = NamedSharding(mesh, PartitionSpec(*split))
            numbers += math.prod(there.shard_shape(row))
    assert memory.token_bytes("fp8") == numbers
