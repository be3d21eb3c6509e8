"""The programs of the small pair's engine on a GPU, as functions of flat NumPy arrays.

They equal those that an engine compiles on such a GPU: same function, order of arrays and donated
state. They can be run by the emulator or by XLA.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.engine import Engine
from eagle3_jax.engine.programs.compiled import PairStructure, flatten_model, program, shapes_of
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_tools.amdgpu.program.compiled import Source
from eagle3_tools.amdgpu.rounds.small_pair import ENGINE, SmallPair
from pallas_kernels import gpu

PREFILL = Program(ProgramKind.ARGMAX_PREFILL)
ROUND = Program(ProgramKind.ARGMAX_ROUND, ENGINE.max_num_seqs)
STATE = 2
"""Index of the state among the arguments; it is donated."""
Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""A compiled program: leaves of all arguments, in jit's order, to leaves of all results."""


@dataclass(frozen=True, eq=False)
class PairProgram:
    """A program of the engine. It takes target, draft, state and the host's inputs."""

    program: Program
    source: Source

    def execute(self, run: Run) -> Callable[..., Any]:
        """Return a function that an engine's executor can call instead of its compiled program."""
        with gpu.assume(self.source.arch):  # A new function, because JAX's caches ignore the GPU.
            results = jax.eval_shape(lambda *a: self.source.function(*a), *self.source.shapes)
        tree = jax.tree.structure(results)

        def execute(*arguments: Any) -> Any:
            leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
            return jax.tree.unflatten(tree, map(jnp.asarray, run(leaves)))

        return execute


def pair_programs(pair: SmallPair, arch: str) -> tuple[PairProgram, PairProgram]:
    """Return the programs for a prefill chunk and a round that such a GPU's engine compiles.

    Both choose tokens in the head's kernel, because no request of the small pair needs logits.
    """
    batch = ENGINE.max_num_seqs
    slots = jax.ShapeDtypeStruct((batch,), jnp.int32)
    table = jax.ShapeDtypeStruct((batch, ENGINE.pages_per_seq), jnp.int32)
    chunk: Any = shapes_of(empty_chunk(ENGINE))
    return _program(pair, arch, PREFILL, chunk), _program(pair, arch, ROUND, slots, table)


def engine_on(pair: SmallPair, arch: str, runs: Mapping[PairProgram, Run]) -> Engine:
    """Make an engine as on such a GPU; `runs` executes both of its programs."""
    with gpu.assume(arch):
        engine = Engine(pair.target, pair.draft, ENGINE)
    for one, run in runs.items():
        engine._runner.executor.compiled[one.program] = one.execute(run)
    return engine


def _program(pair: SmallPair, arch: str, which: Program, *inputs: Any) -> PairProgram:
    aux = pair.draft.config.aux_layer_ids
    with gpu.assume(arch):
        target, target_structure = flatten_model(pair.target)
        draft, draft_structure = flatten_model(pair.draft)
    state = StateLayout(pair.target, pair.draft, ENGINE, len(aux)).shapes()
    shapes: tuple[Any, ...] = (shapes_of(target), shapes_of(draft), state, *inputs)
    structure = PairStructure(target_structure, draft_structure, aux)
    function = program(which.kind, structure, *shapes)
    return PairProgram(which, Source(arch, function, shapes, (STATE,)))
