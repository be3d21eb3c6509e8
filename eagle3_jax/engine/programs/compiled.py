"""Ahead-of-time compiled programs, cached for models with the same shapes.

Weights enter as flat leaves and become modules again during tracing; passing modules would cost
milliseconds per call. All request options are data, so a pair needs two round programs per batch
bucket: lean ones, and full ones for token-id options and logprobs. It needs two such prefills and
one for prompt logprobs. If kernels choose tokens, a third kind, argmax, avoids written logits. Lean
programs remain for top-k and top-p, which are too common to pay for full programs. A grammar needs
a round's two halves as programs, both full, at two batch buckets.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array, ShapeDtypeStruct, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.layers.quantized import fit_to_gpu
from eagle3_jax.mesh import DATA, place, replicas, spec_of, variables
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.logprobs import Logprobs
from eagle3_jax.speculative.method import COUPLED, SpeculationMethod, Variant, Widths
from eagle3_jax.speculative.prefill import prefill_chunk
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.round import propose_round, speculative_round, verify_round
from eagle3_jax.speculative.state import DecodeState
from eagle3_jax.speculative.tree import Tree
from eagle3_jax.vision.encode import ImageBatch, store_features
from pallas_kernels import gpu
from pallas_kernels.dispatch import exact_bits, prefer

Leaves = tuple[Array, ...]
Shapes = tuple[ShapeDtypeStruct, ...]


class Structure(NamedTuple):
    """A model without its arrays: hashable, static under jit."""

    graph: Any
    tree: Any

    def rebuild(self, leaves: Leaves) -> Any:
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, leaves))


@dataclass(frozen=True)
class PairStructure:
    """Static description of target, draft and method; the cache key of programs.

    `kernels` is the operations' implementation, None for the device's own, `xla_kernels` those
    without a kernel. With `exact` kernels compute a row alike in every batch. `vision` is for
    encoding programs. For `draft_sees_images` see `prefill_chunk`.
    """

    target: Structure
    draft: Structure | None
    aux_layer_ids: tuple[int, ...]
    method: SpeculationMethod = COUPLED
    kernels: str | None = None
    xla_kernels: tuple[str, ...] = ()
    exact: bool = False
    vision: Structure | None = None
    draft_sees_images: bool = False
    xla_autotune: bool = False


def flatten_model(model: nnx.Module, mesh: Mesh | None = None) -> tuple[Leaves, Structure]:
    """Split a model into arrays, with float8 in the GPU's format, and structure.

    On a mesh, parameters without a sharding are replicated.
    """
    fitted = fit_to_gpu(model)
    graph, state = nnx.split(fitted)
    leaves, tree = jax.tree.flatten(state)
    if mesh is not None:
        shardings = [NamedSharding(mesh, spec_of(variable)) for variable in variables(fitted)]
        leaves = [place(*pair) for pair in zip(leaves, shardings, strict=True)]
    return tuple(leaves), Structure(graph, tree)


def _models(
    pair: PairStructure, target: Leaves, draft: Leaves
) -> tuple[Target, Eagle3Draft | None]:
    own = pair.target.rebuild(target), pair.draft.rebuild(draft) if pair.draft else None
    if pair.kernels == "pallas":
        for model in filter(None, own):
            _widen(model, own[0].dtype)
    return own


def _widen(model: nnx.Module, dtype: DTypeLike) -> None:
    """Give kernels that are narrower than activations on a CPU the dtype of the computation.

    Interpreted kernels multiply operands of one dtype; XLA's forms widen as they read.
    """
    for _, parameter in nnx.iter_graph(model):
        if isinstance(parameter, nnx.Param) and parameter.get_value().dtype == jnp.bfloat16:
            parameter.set_value(parameter.get_value().astype(dtype))


def _round(
    pair: PairStructure, target: Leaves, draft: Leaves, *batch: Any, **options: Any
) -> tuple[DecodeState, Array, Logprobs | None]:
    models = _models(pair, target, draft)
    return speculative_round(*models, pair.aux_layer_ids, *batch, method=pair.method, **options)


def _prefill(
    pair: PairStructure, target: Leaves, draft: Leaves, *chunk: Any, **options: Any
) -> tuple[DecodeState, Array, Logprobs | None]:
    models, sees = _models(pair, target, draft), pair.draft_sees_images
    return prefill_chunk(*models, pair.aux_layer_ids, *chunk, draft_sees_images=sees, **options)


def _propose(
    pair: PairStructure, target: Leaves, draft: Leaves, *batch: Any, **options: Any
) -> tuple[DecodeState, Drafts | Tree]:
    _, proposer = _models(pair, target, draft)
    return propose_round(proposer, *batch, variant=Variant.FULL, method=pair.method, **options)


def _verify(
    pair: PairStructure, target: Leaves, draft: Leaves, *batch: Any, **options: Any
) -> tuple[DecodeState, Array, Logprobs | None]:
    verifier, _ = _models(pair, target, draft)
    static: Any = {"variant": Variant.FULL, "method": pair.method}
    return verify_round(verifier, pair.aux_layer_ids, *batch, **static, **options)


def _encode(
    pair: PairStructure, vision: Leaves, _: Leaves, state: DecodeState, images: ImageBatch
) -> tuple[DecodeState]:
    assert pair.vision is not None and state.image_features is not None, "a pair with vision"
    kept = store_features(pair.vision.rebuild(vision), state.image_features, images)
    return (replace(state, image_features=kept),)


def _history(
    pair: PairStructure, target: Leaves, draft: Leaves, state: DecodeState, slot: Array, ids: Array
) -> tuple[DecodeState]:
    assert state.history is not None, "an engine with lookup keeps the tokens"
    return (replace(state, history=state.history.at[slot].set(ids)),)


FUNCTIONS = {
    ProgramKind.HISTORY: _history,
    ProgramKind.PREFILL: _prefill,
    ProgramKind.FULL_PREFILL: partial(_prefill, variant=Variant.FULL),
    ProgramKind.ARGMAX_PREFILL: partial(_prefill, variant=Variant.ARGMAX),
    ProgramKind.SCORING_PREFILL: partial(_prefill, variant=Variant.FULL, score_prompt=True),
    ProgramKind.ROUND: _round,
    ProgramKind.FULL_ROUND: partial(_round, variant=Variant.FULL),
    ProgramKind.ARGMAX_ROUND: partial(_round, variant=Variant.ARGMAX),
    ProgramKind.PROPOSE: _propose,
    ProgramKind.VERIFY: _verify,
    ProgramKind.ENCODE: _encode,
}


@lru_cache(maxsize=128)
def compile_program(
    kind: ProgramKind, pair: PairStructure, *shapes: Any, widths: Widths | None = None
) -> Callable[..., tuple[Any, ...]]:
    """Compile the program of this kind for these shapes of weights, state and host inputs.

    The shapes are those of the target's and the draft's leaves, the donated state and the inputs.
    Encoding takes the vision model's leaves instead of the target's, and a token history none.
    `widths` are those of a round narrower than the state.
    """
    function = program(kind, pair, *shapes, widths=widths)
    with prefer(pair.kernels, pair.xla_kernels), exact_bits(pair.exact):
        lowered = jax.jit(function, donate_argnums=(2,)).lower(*shapes)
    return lowered.compile(compiler_options=gpu.compiler_options(autotune=pair.xla_autotune))


def program(
    kind: ProgramKind,
    pair: PairStructure,
    target: Shapes,
    draft: Shapes,
    state: DecodeState,
    *inputs: Any,
    widths: Widths | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Return the uncompiled program as a function of arrays of these shapes.

    On a mesh each device runs it on its part of weights and state. Host inputs and outputs are
    replicated, unless there are replicas: state and inputs then have a leading axis with one entry
    per replica, and outputs are those of all replicas.
    """
    function = partial(FUNCTIONS[kind], pair)
    if widths is not None:
        function = partial(function, widths=widths)
    sharding = state.slots.seq_lens.sharding
    if not isinstance(sharding, NamedSharding):
        return function
    assert isinstance(sharding.mesh, Mesh), "of devices, not of their number alone"
    held, whole, sent = (target, draft, state), PartitionSpec(), PartitionSpec()
    if replicas(sharding.mesh) > 1:
        function, sent = partial(_as_replica, function), PartitionSpec(DATA)
    specs = jax.tree.map(lambda shape: shape.sharding.spec, held)
    one, none = (whole,), ()
    fewer = {ProgramKind.PROPOSE: one, ProgramKind.ENCODE: none, ProgramKind.HISTORY: none}
    outputs = fewer.get(kind, (whole, whole))
    return jax.shard_map(
        function,
        mesh=sharding.mesh,
        in_specs=(*specs, *[sent] * len(inputs)),
        out_specs=(specs[2], *outputs),
        # The check follows axes of values through jnp only, not through kernels.
        check_vma=False,
    )


def _as_replica(
    function: Callable[..., tuple[Any, ...]],
    target: Leaves,
    draft: Leaves,
    state: DecodeState,
    *inputs: Any,
) -> tuple[Any, ...]:
    """Run the function on this replica's state and inputs; gather the outputs of all in order."""
    own_state, *own = jax.tree.map(lambda x: x[0], (state, *inputs))
    new_state, *outputs = function(target, draft, own_state, *own)
    gathered = jax.tree.map(lambda x: lax.all_gather(x, DATA), outputs)
    return jax.tree.map(lambda x: x[None], new_state), *gathered


def shapes_of(tree: Any) -> Any:
    """Replace arrays in a tree by their shapes, dtypes and mesh shardings."""

    def shape_of(x: Any) -> ShapeDtypeStruct:
        sharding = getattr(x, "sharding", None)
        on_mesh = sharding if isinstance(sharding, NamedSharding) else None
        return ShapeDtypeStruct(x.shape, x.dtype, sharding=on_mesh)

    return jax.tree.map(shape_of, tree)
