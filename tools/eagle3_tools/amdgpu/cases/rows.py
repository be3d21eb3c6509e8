"""Small cases of row operations with real row sizes: norms, rotations, caches, routers."""

from dataclasses import replace
from typing import Any

from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.errors import dequantised_error, route_error
from eagle3_tools.amdgpu.cases.launches import named
from eagle3_tools.amdgpu.cases.tolerances import BF16, FLOAT32, FP8_ROWS, ROUTED
from eagle3_tools.amdgpu.cases.variety import unlike_rows, unlike_weights
from eagle3_tools.kernel_cases import caches, experts
from eagle3_tools.kernel_cases.rows import (
    absorb_query_case,
    add_norm_case,
    head_squares_case,
    router_logits_case,
)
from eagle3_tools.kernel_cases.shapes import EXPERTS, ExpertStack, GroupedAttention, LatentAttention
from pallas_kernels.quantized import QuantFormat

PAGES = 3
"""Pages of a pool that rows are written to."""
STACKS = {stack.name: stack for stack in EXPERTS}
PARTLY_WRITTEN = frozenset(range(3, 7))
"""Results of a route whose unused tiles and pairs are not written."""


def row_cases() -> list[EmulatedCase]:
    """Return cases of every format, and of both kernels where many rows have their own."""
    return [*_norms(), *_queries(), *_heads(), *_latents(), *_routers(), *_routes()]


def _norms() -> list[EmulatedCase]:
    """Return cases of norms (eight waves for Kimi's rows, four for MiniMax's) and head squares."""

    def weighted(rows: Any, weight: Any) -> tuple[Any, ...]:
        return rows, unlike_weights(weight, 1)

    found = []
    for name in ("kimi.experts@tp8", "minimax.experts@tp8"):
        case = add_norm_case(name, STACKS[name].hidden, 3)
        like = named(f"add_norm {name} rows4")
        found.append(EmulatedCase.small(case, like, BF16, weighted))
    squares = head_squares_case(GroupedAttention("small", 6, 1), 5)
    like = named("head_squares minimax.attention@tp8 rows4")
    return [*found, EmulatedCase.small(squares, like, FLOAT32)]


def _queries() -> list[EmulatedCase]:
    """Return cases of one tile of 16 rows, and of two of 64."""
    found = []
    for rows, heads, like in ((5, 3, "rows4"), (70, 1, "rows256")):
        case = absorb_query_case(LatentAttention("small", heads), rows)
        real = named(f"absorb_query kimi.attention@tp8 {like}")
        found.append(EmulatedCase.small(case, real, BF16))
    return found


def _heads() -> list[EmulatedCase]:
    """Return cases of a draft's heads, and of MiniMax's with norms and an unrotated part."""

    def used(norms: Any, *arrays: Any) -> tuple[Any, ...]:
        *rows, k_pool, v_pool, pages, offsets, scale = arrays
        if norms is not None:
            q, k, squares = norms
            norms = unlike_weights(q, 1), unlike_weights(k, 2), squares
        return norms, *rows, unlike_rows(k_pool, 3), unlike_rows(v_pool, 4), pages, offsets, scale

    found = []
    for model, heads in (("draft_mha", (3, 3)), ("minimax", (6, 1))):
        for fp8 in (False, True):
            case = caches.cache_heads_case(GroupedAttention(model, *heads), 5, fp8, PAGES)
            like = named(f"cache_heads {model}.attention@tp8 rows4" + "_fp8" * fp8)
            # The pools come after norms and rows.
            fields = {"donate": (6, 7)}
            found.append(EmulatedCase.small(case, like, FP8_ROWS if fp8 else BF16, used, **fields))
    return found


def _latents() -> list[EmulatedCase]:
    def used(weight: Any, q_weight: Any, *arrays: Any) -> tuple[Any, ...]:
        *rows, pool, pages, offsets, scale = arrays
        weights = unlike_weights(weight, 1), unlike_weights(q_weight, 2)
        return *weights, *rows, unlike_rows(pool, 3), pages, offsets, scale

    found = []
    for fp8 in (False, True):
        for format in (None, caches.PTPC):
            case = caches.cache_latents_case(5, fp8, format, PAGES)
            like = named(case.name.replace("rows5", "rows4"))
            fields: dict[str, Any] = {"donate": (6,)}
            if format is not None:
                fields["compare"] = dequantised_error
            tolerance = FP8_ROWS if fp8 or format else BF16
            found.append(EmulatedCase.small(case, like, tolerance, used, **fields))
    return found


def _routers() -> list[EmulatedCase]:
    """Return cases of MiniMax's router with tiles of 16 and of 64 rows."""
    found = []
    for rows, like in ((5, "rows4"), (257, "rows1024")):
        stack = ExpertStack("small", 40, 8, 384, 0)
        real = named(f"router_logits minimax.experts@tp8 {like}")
        found.append(EmulatedCase.small(router_logits_case(stack, rows), real, FLOAT32))
    return found


def _routes() -> list[EmulatedCase]:
    """Return cases of one program with four or sixteen waves, and of two launches (many tokens)."""
    kimi, minimax = STACKS["kimi.experts@tp8"], STACKS["minimax.experts@tp8"]
    ptpc, w4a8, mxfp4 = (
        format for format in experts.KIMI if format and format.activations != "none"
    )
    asked: list[tuple[ExpertStack, QuantFormat | None, int, str]] = [
        (kimi, None, 3, "tokens4"),
        (kimi, None, 50, "tokens64"),
        (kimi, ptpc, 3, "tokens4 fp8_token"),
        (kimi, w4a8, 3, "tokens4 int8_token"),
        (kimi, mxfp4, 3, "tokens4 mxfp4"),
        (minimax, experts.MINIMAX[1], 3, "tokens4 fp8_group"),
        # One program per expert: the fewest experts that are padded to MiniMax's 256.
        (replace(minimax, experts=129), None, 200, "tokens256"),
    ]
    found = []
    for stack, format, tokens, like in asked:
        case = experts.route_case(stack, format, tokens)
        real = named(f"route {stack.name} {like}")
        fields = {"partly_written": PARTLY_WRITTEN, "compare": route_error}
        found.append(EmulatedCase.small(case, real, ROUTED, **fields))
    return found
