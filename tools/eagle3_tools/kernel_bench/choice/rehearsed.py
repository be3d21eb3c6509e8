"""Small cases of every operation for a dry run, in place of the named cases.

A dry run interprets the kernels, one program after another: the models' shapes would take an hour.
"""

from collections.abc import Iterator
from dataclasses import replace

from pallas_kernels.cases import attention, caches, experts, latent_attention, products, rows
from pallas_kernels.cases.case import Case
from pallas_kernels.cases.paged import PagedCase
from pallas_kernels.cases.shapes import (
    ExpertStack,
    GroupedAttention,
    Head,
    LatentAttention,
    Matrix,
    VisionAttention,
)
from pallas_kernels.joint_matmul import GATED_MATMUL, JOINT_MATMUL

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
