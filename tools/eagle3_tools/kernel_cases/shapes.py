"""Shapes that the published models give the kernels, by name.

Tests, compile check, tuner and benchmark use this one table. Sizes come from the published configs:
moonshotai/Kimi-K2.5, lightseekorg's MHA and MLA drafts of it, MiniMaxAI/MiniMax-M2.5 and its draft.
`tp` is the number of tensor-parallel devices; names end with it: `kimi.o_proj@tp4`.
"""

from dataclasses import dataclass

TP = (1, 4, 8)


@dataclass(frozen=True)
class Matrix:
    """One device's part of a linear layer, x [rows, inputs] @ w. Gated layers have two of them."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class LatentAttention:
    """Query heads of one device. Pool rows, kv_lora + rope numbers, are equal on all devices."""

    name: str
    heads: int
    kv_lora: int = 512
    rope: int = 64


@dataclass(frozen=True)
class GroupedAttention:
    """Heads of one device. Each key-value head serves the same number of query heads."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int = 128


@dataclass(frozen=True)
class VisionAttention:
    """Heads of one device. Each row has a query, a key and a value for each head."""

    name: str
    heads: int
    head_dim: int = 72


@dataclass(frozen=True)
class ExpertStack:
    """Routed experts of one device: gate and up [experts, hidden, inter], and down."""

    name: str
    experts: int
    top_k: int
    hidden: int
    inter: int


@dataclass(frozen=True)
class Head:
    """Projection hidden @ [hidden, vocab], followed by the choice of a token."""

    name: str
    hidden: int
    vocab: int


def _split(size: int, tp: int) -> int:
    return max(1, size // tp)


def _matrices(tp: int) -> list[Matrix]:
    """List the matrices. Kimi's heads are split over devices; q_a and kv_a are whole on each."""
    heads, at = _split(64, tp), f"@tp{tp}"
    return [
        Matrix(f"kimi.q_a_proj{at}", 7168, 1536),
        Matrix(f"kimi.kv_a_proj{at}", 7168, 576),
        Matrix(f"kimi.q_b_proj{at}", 1536, heads * 192),
        Matrix(f"kimi.o_proj{at}", heads * 128, 7168),
        Matrix(f"kimi.dense_gate_up{at}", 7168, 18432 // tp),
        Matrix(f"kimi.dense_down{at}", 18432 // tp, 7168),
        Matrix(f"kimi.shared_gate_up{at}", 7168, 2048 // tp),
        Matrix(f"kimi.shared_down{at}", 2048 // tp, 7168),
        Matrix(f"draft.fc{at}", 21504, 7168),
        Matrix(f"draft_mha.qkv_proj{at}", 14336, heads * 128),
        Matrix(f"draft_mha.o_proj{at}", heads * 128, 7168),
        Matrix(f"draft_mha.gate_up{at}", 7168, 12288 // tp),
        Matrix(f"draft_mha.down{at}", 12288 // tp, 7168),
        Matrix(f"draft_mla.q_a_proj{at}", 14336, 1536),
        Matrix(f"draft_mla.kv_a_proj{at}", 14336, 576),
        Matrix(f"draft_mla.gate_up{at}", 7168, 18432 // tp),
        Matrix(f"draft_mla.down{at}", 18432 // tp, 7168),
        Matrix(f"minimax.q_proj{at}", 3072, _split(48, tp) * 128),
        Matrix(f"minimax.kv_proj{at}", 3072, _split(8, tp) * 128),
        Matrix(f"minimax.o_proj{at}", _split(48, tp) * 128, 3072),
    ]


MATRICES = [matrix for tp in TP for matrix in _matrices(tp)]
LATENT_ATTENTION = [LatentAttention(f"kimi.attention@tp{tp}", _split(64, tp)) for tp in TP]
GROUPED_ATTENTION = [
    shape
    for tp in TP
    for shape in (
        GroupedAttention(f"draft_mha.attention@tp{tp}", _split(64, tp), _split(64, tp)),
        GroupedAttention(f"minimax.attention@tp{tp}", _split(48, tp), _split(8, tp)),
    )
]
VISION_ATTENTION = [VisionAttention(f"kimi.vision@tp{tp}", 16 // tp) for tp in (1, 8)]
"""The vision tower is whole on every device (tp1) or split by heads (tp8)."""
EXPERTS = [
    stack
    for tp in TP
    for stack in (
        ExpertStack(f"kimi.experts@tp{tp}", 384, 8, 7168, 2048 // tp),
        ExpertStack(f"minimax.experts@tp{tp}", 256, 8, 3072, 1536 // tp),
    )
]
HEADS = [
    head
    for tp in TP
    for head in (
        Head(f"kimi.lm_head@tp{tp}", 7168, 163840 // tp),
        Head(f"minimax.lm_head@tp{tp}", 3072, 200064 // tp),
        Head(f"minimax_draft.lm_head@tp{tp}", 3072, 32000 // tp),
    )
]
DECODE_ROWS = (1, 4, 16, 64, 256)
"""Rows of a decode or verify step: sequences times k + 1."""
MOST_DECODE_ROWS = 1024
"""Largest number of rows: 64 sequences with 16 rows each, as in tree verification."""
