"""Cases of `logits_argmax` at the published vocabularies."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.case import Case
from pallas_kernels.fp8_matmul.cases import PTPC, format_name
from pallas_kernels.logits_argmax import pallas, reference
from pallas_kernels.logits_argmax.options import ArgmaxOptions
from pallas_kernels.quantized import QuantFormat
from pallas_kernels.quantized.examples import example_kernel, example_rows, matrix_instruction
from pallas_kernels.shapes import DECODE_ROWS, HEADS, Head


def cases() -> list[Case]:
    """Return cases of bfloat16 heads, Kimi's also in PTPC, and at TP4 with min-p and a bias."""
    return [
        make_case(head, format, rows, filtered)
        for head in HEADS
        for format in (None, PTPC)
        for filtered in (False, True)
        for rows in DECODE_ROWS
        if (format is None or head.name.startswith("kimi"))
        and (not filtered or head.name == "kimi.lm_head@tp4")
    ]


def make_case(head: Head, format: QuantFormat | None, rows: int, filtered: bool) -> Case:
    kernels = ("logits_argmax", "logits_argmax_merge")
    return Case(
        operation="logits_argmax",
        shape=head.name,
        variant=f"{format_name(format)}{'_min_p_bias' if filtered else ''} rows{rows}",
        run=partial(_run, pallas.logits_argmax),
        reference=partial(_run, reference.logits_argmax),
        example=partial(_example, head, format, rows, filtered),
        kernels=(
            *(() if format is None else ("quantize_fp8",)),
            *(("logits_argmax_again",) if filtered else ()),
            *kernels,
        ),
        matrix=matrix_instruction(format, rows),
        bytes_moved=head.hidden * head.vocab * (2 if format is None else 1)
        + 2 * rows * head.hidden,
        flops=2 * rows * head.hidden * head.vocab,
        decode=rows <= 64,
    )


def _run(operation: Any, *arrays: Any) -> Any:
    return operation(*arrays, None)


def _example(
    head: Head, format: QuantFormat | None, rows: int, filtered: bool, seed: int
) -> tuple[Any, ...]:
    keys = jax.random.split(jax.random.key(seed), 5)
    options = ArgmaxOptions(
        temperature=jnp.where(jnp.arange(rows) % 2 == 0, 1.0, 0.6),
        seed=jax.random.bits(keys[2], (rows, 2), jnp.uint32),
        positions=jnp.arange(rows, dtype=jnp.int32) * 100,
    )
    if filtered:
        options = options._replace(
            min_p=jnp.full((rows,), 0.05, jnp.float32),
            bias_ids=jax.random.randint(keys[3], (rows, 8), 0, head.vocab),
            bias=jax.random.normal(keys[4], (rows, 8)),
        )
    return (
        example_rows(keys[0], rows, head.hidden),
        example_kernel(keys[1], head.hidden, head.vocab, format),
        options,
        jnp.arange(head.vocab, dtype=jnp.int32),
    )
