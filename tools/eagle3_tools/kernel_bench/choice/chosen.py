"""Cases to measure in order of importance, because GPU time may end at any of them."""

from collections.abc import Sequence

from pallas_kernels.cases.case import Case

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
