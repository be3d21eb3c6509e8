"""Collectives of a round, counted in the compiled program."""

from collections import Counter
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from driving import sizes
from sweeps import sweep
from tiny import latent_draft, tiny_draft, tiny_target
from wide_pair import (
    DRAFTS,
    TWO_KV_HEADS_DRAFT,
    TWO_KV_HEADS_MINIMAX,
    WIDE_DRAFT,
    WIDE_LATENT_DRAFT,
    WIDE_TARGET,
    minimax_of_two_kv_heads,
)

from eagle3_jax.engine.programs.compiled import (
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.moe import MoE
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_tools.aot.collectives import Collective, collectives
from pallas_kernels.paged.partial import MASS

K, BATCH = 3, 4
ROWS = BATCH * (K + 1)


def of_a_round(
    layers: int, by_expert: bool, *, latent: bool = False, parts: int = 1
) -> list[Collective]:
    """Collectives of the lean round of a pair whose target has so many layers. latent: the draft's
    attention. parts: devices that divide a context."""
    target = tiny_target(config=replace(WIDE_TARGET, num_hidden_layers=layers))
    if latent:
        draft = latent_draft(target, config=WIDE_LATENT_DRAFT)
    else:
        draft = tiny_draft(target, config=WIDE_DRAFT)
    return of_the_round(target, draft, by_expert, parts)


def of_the_round(
    target: Target, draft: Eagle3Draft, by_expert: bool, parts: int, replicas: int = 1
) -> list[Collective]:
    """Collectives of this pair's round on 8 devices."""
    mesh = make_mesh(8 // replicas, enable_expert_parallel=by_expert, data_parallel_size=replicas)
    shard(target, mesh)
    shard(draft, mesh)
    aux, config = (
        draft.config.aux_layer_ids,
        sizes(K, decode_context_parallel_size=parts, data_parallel_size=replicas),
    )
    weights, structure = flatten_model(target, mesh)
    draft_weights, draft_structure = flatten_model(draft, mesh)
    pair = PairStructure(structure, draft_structure, aux)
    state = StateLayout(target, draft, config, len(aux), mesh).initial()
    each = () if replicas == 1 else (replicas,)
    slots = jax.ShapeDtypeStruct((*each, BATCH), jnp.int32)
    table = jax.ShapeDtypeStruct((*each, BATCH, config.pages_per_seq), jnp.int32)
    held = shapes_of((weights, draft_weights, state))
    program: Any = compile_program(ProgramKind.ROUND, pair, *held, slots, table)
    return collectives(program.as_text())


@pytest.mark.parametrize("by_expert", sweep([False, True], [True]))
def test_a_layer_adds_two_sums_and_nothing_gathers_logits_or_weights(by_expert: bool) -> None:
    fewer, more = of_a_round(2, by_expert), of_a_round(3, by_expert)
    wide = [c for c in more if c.shape[-1:] == (WIDE_TARGET.hidden_size,)]
    assert {c.kind for c in wide} == {"all-reduce"}
    assert len(wide) - sum(c.shape[-1:] == (WIDE_TARGET.hidden_size,) for c in fewer) == 2
    # Attention and feed-forward of 3 layers and of the draft's k passes, and k + 1 lookups.
    assert len(wide) == 2 * 3 + 2 * K + K + 1
    assert len(more) - len(fewer) == 2
    # Of all else, pairs of a score and an id from 8 devices are the most a row takes.
    others = [c for c in more if c not in wide]
    assert max(c.nbytes for c in others) <= ROWS * 8 * 15 * 4


@pytest.mark.long
@pytest.mark.parametrize("parts", [2, 8])
def test_divided_contexts_add_queries_and_shares_and_nothing_as_large_as_a_context(
    parts: int,
) -> None:
    """Each pass over latents gathers both halves of its queries, and exchanges shares once, which
    on CPUs is an array for each device."""
    whole, divided = (of_a_round(2, False, latent=True, parts=n) for n in (1, parts))
    passes = 2 + K  # Of the target's layers, and of the draft's.
    kinds, before = (Counter(c.kind for c in found) for found in (divided, whole))
    assert kinds - before == {"all-gather": 2 * passes, "all-to-all": parts * passes}
    assert not before - kinds
    # Of the verified rows, of the heads of a group.
    moved: set[int] = set()
    for attention in (WIDE_TARGET, WIDE_LATENT_DRAFT.latent_attention):
        assert attention is not None
        latent, rope = attention.kv_lora_rank, attention.qk_rope_head_dim
        heads = attention.num_attention_heads // 8
        widths = parts * latent, parts * rope, latent + MASS
        moved |= {4 * ROWS * heads * width for width in widths}
    added = Counter(c.nbytes for c in divided) - Counter(c.nbytes for c in whole)
    assert moved <= set(added)
    assert max(added) == max(moved)


@pytest.mark.long
def test_devices_of_a_kv_head_gather_its_queries_and_exchange_its_shares() -> None:
    """Each pass gathers once and exchanges once, of the heads of four devices; nothing is larger
    than what the sums of hidden states are."""
    target, parts = minimax_of_two_kv_heads(), 4
    found = of_the_round(target, DRAFTS["of two KV heads"](target), False, parts)
    layers = TWO_KV_HEADS_MINIMAX.num_hidden_layers
    exchanged = [c for c in found if c.kind == "all-to-all"]
    # On CPUs an array for each device.
    assert len(exchanged) == parts * (layers + K)
    gathered = Counter(c.nbytes for c in found if c.kind == "all-gather")
    shares = Counter(c.nbytes for c in exchanged)
    for attention, passes in ((TWO_KV_HEADS_MINIMAX, layers), (TWO_KV_HEADS_DRAFT, 1)):
        heads, dim = attention.num_attention_heads // 8, attention.head_dim
        assert gathered[4 * ROWS * heads * dim * parts] >= passes
        assert shares[4 * ROWS * heads * (dim + MASS)] >= parts * passes
    assert max(c.nbytes for c in found) <= ROWS * 8 * 15 * 4


def test_replicas_meet_in_routed_experts_and_in_what_the_host_reads_alone() -> None:
    """A layer with experts gathers all rows and exchanges as many, which on CPUs is an array for
    each device; nothing else is told, and nothing is summed over devices."""
    target = tiny_target(config=replace(WIDE_TARGET, num_hidden_layers=3))
    found = of_the_round(target, tiny_draft(target, config=WIDE_DRAFT), True, 1, replicas=8)
    routed = sum(isinstance(layer.mlp, MoE) for layer in target.layers)
    row = 4 * WIDE_TARGET.hidden_size
    assert Counter((c.kind, c.nbytes) for c in found) == {
        ("all-gather", 8 * ROWS * row): routed,
        ("all-to-all", ROWS * row): 8 * routed,
        ("all-gather", 8 * BATCH * 4 * (K + 3)): 1,
    }
