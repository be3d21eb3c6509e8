"""CPU implementation of `grouped_mlp`: a loop over blocks of pairs that chose the same expert.

A pair is one (token, choice). Pairs are grouped by expert and each group is cut into blocks of a
fixed number of rows, so a block is three small matrix products, and an expert hit by several tokens
is read about once. Only the blocks in use run: the loop's trip count is data, which costs nothing
on CPU. (A GPU waits for it, one reason to have a kernel there.) The block size depends on static
sizes only, and rows of a product are independent, so the grouping never shows in a row's bits.

Milliseconds a call, float32, XLA:CPU (jax 0.10.2), one pinned thread of a busy 2-vCPU Zen 5 with 32
MiB of L3, uniform random choices, best of several runs; "pairs" loops over single pairs. The larger
case was measured while blocks were grouped by a running sum; in the smaller case that made no
difference up to 64 tokens and was 7 % faster at 256:

    tokens            1      2      4      8     16     32     64    128    256
    block             1      2      2      2      4      4      8      8     16
    32 experts of 512x256, top-4
      pairs        0.28   0.57   1.29   2.72   5.67   14.6   22.9   63.3    133
      blocks       0.29   0.49   1.24   2.08   3.11   4.56   5.83   9.64   14.6
    16 experts of 192x128, top-2
      pairs       0.039  0.061  0.101  0.184  0.343  0.670  1.356  2.911  11.02
      blocks      0.039  0.048  0.094  0.141  0.213  0.304  0.458  0.829   1.36
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from pallas_kernels.grouped_matmul.shared import GatedKernels
from pallas_kernels.streamed import expert_matmul


def grouped_mlp_on_cpu(
    x: Float[Array, "tokens hidden"],
    stacks: GatedKernels,
    expert_ids: Int[Array, "tokens top_k"],
    expert_weights: Float[Array, "tokens top_k"],
) -> Float[Array, "tokens hidden"]:
    """Run `grouped_mlp` without a shared expert."""
    (tokens, top_k), experts, (gate, up, down) = expert_ids.shape, stacks.gate.shape[0], stacks
    rows = block_rows(tokens, top_k, experts)
    blocks = _one_pair_each(expert_ids) if rows == 1 else _group(expert_ids, experts, rows)

    def run_block(index: Array, out: Array) -> Array:
        expert, first = blocks.expert[index], index * rows
        block = x[lax.dynamic_slice_in_dim(blocks.token, first, rows)]
        inner = jax.nn.silu(expert_matmul(block, gate, expert)) * expert_matmul(block, up, expert)
        return lax.dynamic_update_slice_in_dim(out, expert_matmul(inner, down, expert), first, 0)

    empty = jnp.zeros((blocks.token.size, x.shape[1]), x.dtype)
    outs = lax.fori_loop(0, blocks.used, run_block, empty)[blocks.slot]
    held = (expert_ids >= 0) & (expert_ids < experts)
    total = jnp.zeros(x.shape, jnp.float32)
    for choice in range(top_k):
        chosen = expert_weights[:, choice, None] * outs[:, choice]
        total += jnp.where(held[:, choice, None], chosen, 0)
    return total.astype(x.dtype)


def block_rows(tokens: int, top_k: int, experts: int) -> int:
    """Return the rows of a block: about the mean group, while a row costs less than a block."""
    for rows, largest_mean in ((2, 1), (4, 4), (8, 16)):
        if tokens * top_k <= largest_mean * experts:
            return min(rows, tokens)
    return min(16, tokens)


class _Blocks(NamedTuple):
    """Blocks of rows with their experts, and the place of each pair's result."""

    used: Int[Array, ""] | int
    expert: Int[Array, " blocks"]
    token: Int[Array, " slots"]
    slot: Int[Array, "tokens top_k"]


def _one_pair_each(expert_ids: Int[Array, "tokens top_k"]) -> _Blocks:
    pair = jnp.arange(expert_ids.size).reshape(expert_ids.shape)
    token = (pair // expert_ids.shape[1]).reshape(-1)
    return _Blocks(expert_ids.size, expert_ids.reshape(-1), token, pair)


def _group(expert_ids: Int[Array, "tokens top_k"], experts: int, rows: int) -> _Blocks:
    """Group pairs into blocks of `rows` rows of one expert each.

    Everything is counted by comparisons, which fuse into a few small loops. A sort, a running sum
    or a scatter would be many separately compiled and launched loops.
    """
    chosen = expert_ids.reshape(-1)
    pair, expert = jnp.arange(chosen.size), jnp.arange(experts)
    counts = (chosen == expert[:, None]).sum(1)
    blocks_of = (counts + rows - 1) // rows
    ends = jnp.where(expert <= expert[:, None], blocks_of, 0).sum(1)
    rank = ((chosen == chosen[:, None]) & (pair < pair[:, None])).sum(1)
    # A group's last block may be partly empty: at most one such block per expert.
    blocks = min(chosen.size, chosen.size // rows + experts)
    held = (chosen >= 0) & (chosen < experts)
    slot = jnp.where(held, (ends - blocks_of)[chosen] * rows + rank, blocks * rows)
    expert_of = (ends <= jnp.arange(blocks)[:, None]).sum(1)
    token = pair // expert_ids.shape[1]
    token_of = jnp.where(slot == jnp.arange(blocks * rows)[:, None], token, 0).sum(1)
    return _Blocks(ends[-1], expert_of, token_of, slot.reshape(expert_ids.shape))
