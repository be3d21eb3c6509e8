"""An engine's compiled programs on a state that the caller may read, copy and replace."""

from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.programs.compiled import (
    PairStructure,
    compile_program,
    flatten_model,
    shapes_of,
)
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.packing import pack_chunk
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.mesh import mesh_of
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.method import Widths


class EnginePrograms:
    """The programs of `Engine`, run one by one without its scheduler and page allocator.

    `target_leaves` and `draft_leaves` are the models' arrays as programs take them, `pair` is their
    static structure. Every program donates `state` and replaces it.
    """

    def __init__(self, target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> None:
        self.target, self.draft, self.config = target, draft, config
        aux_ids = draft.config.aux_layer_ids if draft else ()
        mesh = mesh_of(target)
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self.target_leaves, target_structure = flatten_model(target, mesh)
        self.draft_leaves, draft_structure = flatten_model(draft, mesh) if draft else ((), None)
        self.pair = PairStructure(target_structure, draft_structure, aux_ids, config.method)
        self.state = StateLayout(target, draft, config, len(aux_ids), mesh).initial()

    def compiled(
        self, kind: ProgramKind, *inputs: Any, widths: Widths | None = None
    ) -> Callable[..., tuple[Any, ...]]:
        """Compile a program for inputs of these shapes; it donates the state.

        It maps (target_leaves, draft_leaves, state, *inputs) to (state, report, logprobs).
        """
        shapes = shapes_of((self.target_leaves, self.draft_leaves, self.state, *inputs))
        return compile_program(kind, self.pair, *shapes, widths=widths)

    def run(self, kind: ProgramKind, *inputs: Any, widths: Widths | None = None) -> Array:
        """Run a program on the state and return the report that the host reads."""
        program = self.compiled(kind, *inputs, widths=widths)
        sent = jax.device_put(inputs, self._everywhere)
        self.state, report, _ = program(self.target_leaves, self.draft_leaves, self.state, *sent)
        return report

    def fill_slots(
        self,
        prompts: Iterable[Sequence[int]],
        sampling: Iterable[SamplingParams],
        eos_token_ids: Collection[int] = (),
    ) -> tuple[Array, Array]:
        """Prefill a prompt in each of the first slots, chunk by chunk.

        A slot has pages for the whole context. Returns the slots [batch] and page table.
        """
        config, tables = self.config, []
        drafts, count = config.num_speculative_tokens if self.draft else 0, config.pages_per_seq
        for slot, (prompt, params) in enumerate(zip(prompts, sampling, strict=True)):
            request = Request(f"{slot}", list(prompt), params)
            sequence = EngineSequence.of(request, eos_token_ids, config.max_model_len, None)
            tables.append(array("i", range(1 + slot * count, 1 + (slot + 1) * count)))
            sequence.slot, sequence.pages = slot, tables[-1]
            length = len(sequence.prefill_ids)
            for start in range(0, length, config.prefill_chunk):
                plan = ChunkPlan(sequence, start, min(length - start, config.prefill_chunk))
                self.run(ProgramKind.PREFILL, pack_chunk(plan, config, drafts))
        return jnp.arange(len(tables)), jnp.asarray(tables, jnp.int32)
