"""Small cases of every operation for a dry run, in place of the named cases.

A dry run interprets the kernels, one program after another: the models' shapes would take an hour.
"""

from collections.abc import Iterator
from dataclasses import replace

from pallas_kernels.absorb_query.cases import make_case as absorb_query
from pallas_kernels.add_norm.cases import make_case as add_norm
from pallas_kernels.cache_heads.cases import make_case as cache_heads
from pallas_kernels.cache_latents.cases import make_case as cache_latents
from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul.cases import PTPC
from pallas_kernels.fp8_matmul.cases import make_case as fp8_matmul
from pallas_kernels.gqa_decode.cases import make_case as gqa_decode
from pallas_kernels.gqa_share.cases import make_case as gqa_share
from pallas_kernels.grouped_matmul.cases import make_case as grouped_mlp
from pallas_kernels.head_squares.cases import make_case as head_squares
from pallas_kernels.item_attention.cases import make_case as item_attention
from pallas_kernels.joint_matmul.cases import make_case as joint_matmul
from pallas_kernels.logits_argmax.cases import make_case as logits_argmax
from pallas_kernels.mla_decode.cases import make_case as mla_decode
from pallas_kernels.mla_prefill.cases import make_case as mla_prefill
from pallas_kernels.mla_prefill.cases import part_case as mla_prefill_part
from pallas_kernels.mla_share.cases import share_case as attend_share
from pallas_kernels.mla_share.cases import values_case as share_values
from pallas_kernels.paged.case import PagedCase
from pallas_kernels.route.cases import make_case as route
from pallas_kernels.router_logits.cases import make_case as router_logits
from pallas_kernels.shapes import (
    ExpertStack,
    GroupedAttention,
    Head,
    LatentAttention,
    Matrix,
    VisionAttention,
)

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
    yield mla_decode(LATENT, CONTEXT)
    yield grouped_mlp(EXPERTS, None, ROWS)
    yield fp8_matmul(MATRIX, PTPC, ROWS)
    yield logits_argmax(Head("kimi.lm_head", 256, 1024), None, ROWS, False)
    yield gqa_decode(GROUPED, replace(CONTEXT, fp8=True))
    yield gqa_share(GROUPED, CONTEXT, GROUPS)
    yield mla_prefill(LATENT, CHUNK)
    yield mla_prefill_part(LATENT, CHUNK)
    yield attend_share(LATENT, CONTEXT, GROUPS)
    yield share_values(LATENT, ROWS, GROUPS)
    yield cache_heads(GROUPED, ROWS, True, PAGES)
    yield cache_latents(ROWS, False, None, PAGES)
    yield absorb_query(LATENT, ROWS)
    yield add_norm(SIZE, 256, ROWS)
    yield head_squares(GROUPED, ROWS)
    yield item_attention(VisionAttention("kimi.vision", 2), (40, 24))
    yield joint_matmul("joint_matmul", [MATRIX] * 2, None, ROWS)
    yield joint_matmul("gated_matmul", [MATRIX] * 2, None, ROWS)
    yield route(EXPERTS, None, ROWS)
    yield router_logits(EXPERTS, ROWS)
