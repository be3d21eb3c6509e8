"""Recorded cases: the launches in rounds of the published pairs.

With 16 and 64 sequences and three drafts, 64 and 256 rows are verified and drafted from first; the
draft's other passes have 16 and 64 rows. Attention has 8,704 slots a sequence. Where devices split
contexts, each has its part of that, or of 102,400.
"""

import re
from collections.abc import Iterable

from eagle3_tools.kernel_cases.case import Case

_VERIFY, _ALL = "(64|256)", "(16|64|256)"
_LONG = "q[14]_8.5k_page64(_b64)?"
_NAMED = (
    f"joint_matmul kimi.q_a_proj@tp1 bf16 rows{_VERIFY}",
    f"joint_matmul draft_mla.q_a_proj@tp1 bf16 rows{_ALL}",
    f"joint_matmul draft_mha.qkv_proj@tp[48] (bf16|ptpc) rows{_ALL}",
    f"joint_matmul minimax.q_proj@tp[48] fp8_block rows{_VERIFY}",
    f"gated_matmul kimi.dense_gate_up@tp[48] bf16 rows{_VERIFY}",
    f"gated_matmul draft_mha.gate_up@tp[48] (bf16|ptpc) rows{_ALL}",
    f"gated_matmul draft_mla.gate_up@tp[48] bf16 rows{_ALL}",
    f"fp8_matmul kimi.(q_b|o)_proj@tp[48] ptpc rows{_VERIFY}",
    f"fp8_matmul draft_mha.(o_proj|down)@tp[48] ptpc rows{_ALL}",
    f"fp8_matmul minimax.o_proj@tp[48] fp8_block rows{_VERIFY}",
    f"logits_argmax kimi.lm_head@tp[48] (bf16|ptpc) rows{_ALL}",
    f"logits_argmax minimax.lm_head@tp[48] bf16 rows{_VERIFY}",
    "logits_argmax minimax_draft.lm_head@tp[48] bf16 rows(16|64)",
    f"mla_decode kimi.attention@tp[48] ({_LONG}|q4_8k_page64)_values",
    "attend_share kimi.attention@tp4 q[14]_(2.125|25)k_page64(_b64)?",
    "attend_share kimi.attention@tp8 q[14]_(1.0625|12.5)k_page64(_b64)?",
    f"share_values kimi.attention@tp[48] rows{_ALL}",
    f"gqa_decode draft_mha.attention@tp[48] ({_LONG}|q4_1k_page64)",
    "gqa_decode minimax.attention@tp[48] (q4_8.5k_page64(_b64)?|q4_8k_page64)",
    "grouped_mlp kimi.experts@tp[48] "
    f"(int4_group|mxfp4_mxfp4|fp8_channel_fp8_token|int4_channel_int8_token) tokens{_VERIFY}",
    f"grouped_mlp minimax.experts@tp[48] fp8_block_fp8_group tokens{_VERIFY}",
    f"route kimi.experts@tp8 tokens{_VERIFY}( mxfp4| fp8_token| int8_token)?",
    f"route minimax.experts@tp8 tokens{_VERIFY} fp8_group",
    f"router_logits minimax.experts@tp8 rows{_VERIFY}",
    f"cache_latents kimi.attention@tp1 rows{_ALL}",
    f"absorb_query kimi.attention@tp[48] rows{_ALL}",
    f"cache_heads draft_mha.attention@tp[48] rows{_ALL}",
    f"cache_heads minimax.attention@tp[48] rows{_VERIFY}",
    f"head_squares minimax.attention@tp[48] rows{_VERIFY}",
    f"add_norm (kimi|minimax).experts@tp8 rows{_ALL}",
)
_PATTERN = re.compile("|".join(f"(?:{name})" for name in _NAMED))


def is_named(name: str) -> bool:
    """Return whether a case of this name is recorded."""
    return _PATTERN.fullmatch(name) is not None


def named(cases: Iterable[Case]) -> list[Case]:
    """Return the recorded cases. Raises ValueError if a name of the list has no case."""
    found = [case for case in cases if is_named(case.name)]
    missing = [n for n in _NAMED if not any(re.fullmatch(n, case.name) for case in found)]
    if missing:
        raise ValueError(f"no case is called like {', '.join(missing)}")
    return found
