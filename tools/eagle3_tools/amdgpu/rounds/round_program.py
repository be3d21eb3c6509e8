"""The programs of the small pair's engine on a GPU, as functions of flat NumPy arrays.

They equal those that an engine compiles on such a GPU: same function, order of arrays and donated
state. They can be run by the emulator or by XLA.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.engine import Engine
from eagle3_jax.engine.programs.compiled import PairStructure, flatten_model, program, shapes_of
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_tools.amdgpu.program.compiled import Source
from eagle3_tools.amdgpu.rounds.small_pair import ENGINE, SmallPair, small_pair
from pallas_kernels import gpu

PREFILL = Program(ProgramKind.ARGMAX_PREFILL)
ROUND = Program(ProgramKind.ARGMAX_ROUND, ENGINE.max_num_seqs)
STATE = 2
"""Index of the state among the arguments; it is donated."""
Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]
"""A compiled program: arguments in the order of `PairProgram.leaves` to all results."""


@dataclass(frozen=True)
class PairProgram:
    """A program of the engine on `arch`.

    `shapes` are those of the target's and draft's arrays, the state, and the host's inputs.
    """

    arch: str
    program: Program
    function: Callable[..., tuple[Any, ...]]
    shapes: tuple[Any, ...]

    @property
    def donated(self) -> range:
        """Indices of the state's arrays among the arguments' leaves."""
        before = len(jax.tree.leaves(self.shapes[:STATE]))
        return range(before, before + len(jax.tree.leaves(self.shapes[STATE])))

    @cached_property
    def results(self) -> tuple[Any, ...]:
        """Shapes of the results: the new state, the report, and no logprobs."""
        with gpu.assume(self.arch):
            return jax.eval_shape(lambda *arguments: self.function(*arguments), *self.shapes)

    def leaves(self, *arguments: Any) -> list[np.ndarray]:
        """Flatten arguments in the order in which jit numbers its parameters."""
        return [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]

    def returned(self, results: Sequence[np.ndarray]) -> tuple[Any, ...]:
        """Unflatten results to state, report and no logprobs.

        Raises ValueError if a result has a wrong shape or dtype.
        """
        expected, tree = jax.tree.flatten(self.results)
        for place, (shape, result) in enumerate(zip(expected, results, strict=True)):
            if (result.shape, result.dtype) != (shape.shape, shape.dtype):
                raise ValueError(
                    f"result {place} of {self.program}: expected {shape.dtype}{shape.shape}, "
                    f"got {result.dtype}{result.shape}"
                )
        return jax.tree.unflatten(tree, map(jnp.asarray, results))

    def execute(self, run: Run) -> Callable[..., tuple[Any, ...]]:
        """Return a function that an engine's executor can call instead of its compiled program."""
        return lambda *arguments: self.returned(run(self.leaves(*arguments)))


def pair_programs(pair: SmallPair, arch: str) -> tuple[PairProgram, PairProgram]:
    """Return the programs for a prefill chunk and a round that such a GPU's engine compiles.

    Both choose tokens in the head's kernel, because no request of the small pair needs logits.
    """
    chunk: Any = shapes_of(empty_chunk(ENGINE))
    batch = ENGINE.max_num_seqs
    slots = jax.ShapeDtypeStruct((batch,), jnp.int32)
    table = jax.ShapeDtypeStruct((batch, ENGINE.pages_per_seq), jnp.int32)
    return _program(pair, arch, PREFILL, chunk), _program(pair, arch, ROUND, slots, table)


class PairKey(NamedTuple):
    """A program of a pair: one of small_pair.FORMATS, an architecture, PREFILL or ROUND."""

    format: str
    arch: str
    program: Program


def source(key: PairKey) -> Source:
    """Return the input of `eagle3_tools.amdgpu.program.compiled`."""
    found = pair_programs(small_pair(key.format), key.arch)
    (one,) = (one for one in found if one.program == key.program)
    return Source(one.arch, one.function, one.shapes, (STATE,))


def engine_on(pair: SmallPair, arch: str, runs: Mapping[Program, Run]) -> Engine:
    """Make an engine as on such a GPU; `runs` executes its PREFILL and ROUND."""
    with gpu.assume(arch):
        engine = Engine(pair.target, pair.draft, ENGINE)
    for one in pair_programs(pair, arch):
        engine._runner.executor.compiled[one.program] = one.execute(runs[one.program])
    return engine


def interpreted(one: PairProgram) -> Run:
    """Compile the program for this CPU, with the GPU's kernels in interpret mode."""
    tree = jax.tree.structure(one.shapes)

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(one.function(*jax.tree.unflatten(tree, leaves)))

    with gpu.assume(one.arch):
        compiled = jax.jit(flat).lower(*jax.tree.leaves(one.shapes)).compile()
    return lambda leaves: [np.asarray(result) for result in compiled(*leaves)]


def _program(pair: SmallPair, arch: str, which: Program, *inputs: Any) -> PairProgram:
    aux = pair.draft.config.aux_layer_ids
    with gpu.assume(arch):
        target, target_structure = flatten_model(pair.target)
        draft, draft_structure = flatten_model(pair.draft)
    state = StateLayout(pair.target, pair.draft, ENGINE, len(aux)).shapes()
    shapes: tuple[Any, ...] = (shapes_of(target), shapes_of(draft), state, *inputs)
    structure = PairStructure(target_structure, draft_structure, aux)
    return PairProgram(arch, which, program(which.kind, structure, *shapes), shapes)
