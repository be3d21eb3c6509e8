"""Small cases of every operation for a dry run, in place of the named cases.

A dry run interprets the kernels, one program after another: the models' shapes would take an hour.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from eagle3_tools.kernel_cases import attention, caches, experts, latent_attention, products, rows
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_cases.paged import PagedCase
from eagle3_tools.kernel_cases.shapes import (
    ExpertStack,
    GroupedAttention,
    Head,
    LatentAttention,
    Matrix,
    VisionAttention,
)
from pallas_kernels.joint_matmul import GATED_MATMUL, JOINT_MATMUL

NAMED = (
    "mla_decode kimi.attention@tp4 q4_8k_page64",
    "mla_decode kimi.attention@tp4 q1_8k_page64",
    "grouped_mlp kimi.experts@tp4 bf16 tokens64",
    "fp8_matmul kimi.o_proj@tp4 ptpc rows64",
    "logits_argmax kimi.lm_head@tp4 bf16 rows64",
    "grouped_mlp kimi.experts@tp4 bf16 tokens16",
    "fp8_matmul kimi.o_proj@tp4 ptpc rows16",
    "logits_argmax kimi.lm_head@tp4 bf16 rows16",
    "mla_decode kimi.attention@tp8 q4_8k_page64",
    "mla_decode kimi.attention@tp8 q1_8k_page64",
    "grouped_mlp minimax.experts@tp4 bf16 tokens64",
    "fp8_matmul kimi.dense_down@tp4 ptpc rows64",
    "logits_argmax kimi.lm_head@tp1 bf16 rows64",
    "fp8_matmul draft_mha.o_proj@tp1 ptpc rows16",
    "grouped_mlp kimi.experts@tp4 bf16 tokens4",
    "fp8_matmul kimi.o_proj@tp4 ptpc rows4",
    "fp8_matmul kimi.o_proj@tp4 ptpc rows1",
    "logits_argmax kimi.lm_head@tp4 ptpc rows64",
    "grouped_mlp kimi.experts@tp4 int4_group tokens64",
    "grouped_mlp kimi.experts@tp4 fp8_channel_fp8_token tokens64",
    "grouped_mlp kimi.experts@tp4 mxfp4_mxfp4 tokens64",
    "mla_decode kimi.attention@tp4 q4_8k_page64_fp8",
    "mla_decode kimi.attention@tp4 q4_1k_page64",
    "fp8_matmul draft_mha.down@tp1 ptpc rows64",
    "logits_argmax minimax.lm_head@tp4 bf16 rows16",
)
"""Cases that the goals name, the most informative of each goal first. At most 25, as many as half
an hour of GPU time allows."""


def named(cases: Sequence[Case]) -> list[Case]:
    """Return the cases of NAMED. Raises KeyError for a missing one."""
    by_name = {case.name: case for case in cases}
    return [by_name[name] for name in NAMED]


def in_turn(cases: Sequence[Case]) -> list[Case]:
    """Interleave operations, decode steps at four devices first: a budget then cuts all alike."""
    rank: dict[str, int] = {}
    keyed = []
    for case in sorted(cases, key=lambda c: (not c.decode, "@tp4" not in c.shape)):
        rank[case.operation] = rank.get(case.operation, 0) + 1
        keyed.append((rank[case.operation], len(keyed), case))
    return [case for _, _, case in sorted(keyed, key=lambda entry: entry[:2])]


SIZE = "small"
"""Replaces the model's shape in the cases' names."""
ROWS, PAGES, GROUPS = 2, 4, 2
CONTEXT = PagedCase(2, 128, page_size=16, batch=2)
CHUNK = replace(CONTEXT, q_len=32, batch=1)
LATENT = LatentAttention("kimi.attention", 4, 128, 32)
GROUPED = GroupedAttention("minimax.attention", 4, 2, 64)
EXPERTS = ExpertStack("minimax.experts", 8, 2, 256, 128)
MATRIX = Matrix("kimi.o_proj", 256, 256)


def rehearsed() -> list[Case]:
    """Return one case of every operation, two if peers or the cache are float8."""
    return [replace(case, shape=SIZE) for case in _cases()]


def _cases() -> Iterator[Case]:
    yield latent_attention.mla_decode_case(LATENT, CONTEXT)
    yield experts.grouped_mlp_case(EXPERTS, None, ROWS)
    yield products.matmul_case(MATRIX, products.PTPC, ROWS)
    yield products.logits_argmax_case(Head("kimi.lm_head", 256, 1024), None, ROWS, False)
    yield attention.gqa_decode_case(GROUPED, replace(CONTEXT, fp8=True))
    yield attention.gqa_share_case(GROUPED, CONTEXT, GROUPS)
    yield latent_attention.mla_prefill_case(LATENT, CHUNK)
    yield latent_attention.mla_prefill_part_case(LATENT, CHUNK)
    yield latent_attention.attend_share_case(LATENT, CONTEXT, GROUPS)
    yield latent_attention.share_values_case(LATENT, ROWS, GROUPS)
    yield caches.cache_heads_case(GROUPED, ROWS, True, PAGES)
    yield caches.cache_latents_case(ROWS, False, None, PAGES)
    yield rows.absorb_query_case(LATENT, ROWS)
    yield rows.add_norm_case(SIZE, 256, ROWS)
    yield rows.head_squares_case(GROUPED, ROWS)
    yield attention.item_attention_case(VisionAttention("kimi.vision", 2), (40, 24))
    yield products.joint_case(JOINT_MATMUL, [MATRIX] * 2, None, ROWS)
    yield products.joint_case(GATED_MATMUL, [MATRIX] * 2, None, ROWS)
    yield experts.route_case(EXPERTS, None, ROWS)
    yield rows.router_logits_case(EXPERTS, ROWS)
