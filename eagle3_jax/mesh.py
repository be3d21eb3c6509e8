"""One mesh of devices, and how the parameters of a model lie on it.

Layers name logical axes; only this file says which of them are split over which mesh axes. What a
program runs is what one device does (`jax.shard_map`): a parameter there is the device's part, and
layers add up partial products themselves, as the parameter's `mesh_axes` tell them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA, TENSOR, EXPERT = "data", "tensor", "expert"
MeshAxes = tuple[str, ...]
DEVICES: MeshAxes = (TENSOR, EXPERT)
"""All devices that run the same rows. These are as many as tensor parallelism has; with expert
parallelism they lie along `expert` and hold whole experts, else along `tensor` and hold a part of
each. A mesh with an axis `data` has several such replicas, each with rows of its own; only routed
experts are divided over all of them."""

KV_HEADS = "kv_heads"
RULES: Mapping[str, MeshAxes] = {
    "heads": DEVICES,
    KV_HEADS: DEVICES,
    "mlp": DEVICES,
    "vocab": DEVICES,
    "expert": (DATA, EXPERT),
    "expert_mlp": (TENSOR,),
    "embed": (),
    "latent": (),
    "head_dim": (),
}
"""Logical axis -> mesh axes, none where every device holds all of it."""


def make_mesh(
    tensor_parallel_size: int,
    *,
    enable_expert_parallel: bool = False,
    data_parallel_size: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """A mesh of the first devices, of one kind: data_parallel_size replicas of tensor_parallel_size
    each.

    Raises ValueError where there are too few, or of several kinds, and for replicas whose experts
    would not be whole.
    """
    found = jax.devices() if devices is None else devices
    size, replicas = tensor_parallel_size, data_parallel_size
    if size < 1 or replicas < 1 or size * replicas > len(found):
        raise ValueError(
            f"tensor_parallel_size must be 1..{len(found)}, as many devices as there are; got "
            f"{size}" + f" for each of {replicas} replicas" * (replicas != 1)
        )
    if replicas > 1 and not enable_expert_parallel:
        raise ValueError("replicas share whole experts: give enable_expert_parallel too")
    taken = list(found[: size * replicas])
    kinds = sorted({device.device_kind for device in taken})
    if len(kinds) > 1:
        raise ValueError(f"the devices of a mesh must be of one kind, got {', '.join(kinds)}")
    shape = (1, size) if enable_expert_parallel else (size, 1)
    if replicas == 1:
        return Mesh(np.array(taken).reshape(shape), DEVICES)
    return Mesh(np.array(taken).reshape(replicas, *shape), (DATA, *DEVICES))


def mesh_axes(axes: Sequence[str | None]) -> tuple[MeshAxes, ...]:
    """The mesh axes that split each dimension of a parameter with these logical axes.

    Raises ValueError where one mesh axis would split two dimensions.
    """
    split = tuple(RULES[name] if name else () for name in axes)
    used = [axis for dimension in split for axis in dimension]
    if len(used) > len(set(used)):
        raise ValueError(f"axes {tuple(axes)} collide: one mesh axis would split two of them")
    return split


def parameter_axes(
    parameter: nnx.Variable[Any], count: Callable[[MeshAxes], int]
) -> tuple[MeshAxes, ...]:
    """The mesh axes that split each dimension of a parameter; count: how many parts some make.

    One that makes KV heads (its metadata say how many) is whole where several devices share each.
    An axis of one device splits nothing.
    """
    metadata = parameter.get_metadata()
    axes = metadata.get("axes") or (None,) * parameter.get_value().ndim
    heads = metadata.get(KV_HEADS)
    if heads is not None and sharers(heads, count(RULES[KV_HEADS])) > 1:
        axes = [None if name == KV_HEADS else name for name in axes]
    return tuple(tuple(a for a in names if count((a,)) > 1) for names in mesh_axes(axes))


def check_units(units: Mapping[str, int], mesh: Mesh) -> None:
    """Refuses a mesh that does not divide what a model has of some logical axis.

    units: how many indivisible parts each axis has: of `heads` the heads, not their columns.
    """
    problems = [
        f"{count} {UNIT_NAMES[axis]} cannot be split evenly over {parts(mesh, RULES[axis])} devices"
        + ", nor shared by equally many" * (axis == KV_HEADS)
        for axis, count in units.items()
        if not divides(axis, count, parts(mesh, RULES[axis]))
    ]
    if problems:
        raise ValueError("; ".join(problems))


def divides(axis: str, units: int, devices: int) -> bool:
    """Whether each device can have as much of a logical axis as the others."""
    return units % devices == 0 or (axis == KV_HEADS and sharers(units, devices) > 1)


def sharers(kv_heads: int, devices: int) -> int:
    """How many neighbours attend with the same KV head: 1 unless the devices are a multiple of the
    heads."""
    return 1 if devices % kv_heads else devices // kv_heads


UNIT_NAMES: Mapping[str, str] = {
    "heads": "attention heads",
    KV_HEADS: "KV heads",
    "mlp": "columns of a feed-forward block",
    "vocab": "tokens of a vocabulary",
    "expert": "experts",
    "expert_mlp": "columns of an expert",
}
"""Logical axis -> what its indivisible parts are called."""


def parts(mesh: Mesh, axes: MeshAxes) -> int:
    """How many parts these mesh axes make; one that the mesh has not makes none."""
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def replicas(mesh: Mesh | None) -> int:
    """How many groups of devices run rows of their own."""
    return 1 if mesh is None else parts(mesh, (DATA,))


def shard(model: nnx.Module, mesh: Mesh) -> None:
    """Puts every parameter of a model on the mesh; abstract ones learn where they belong.

    A parameter without logical axes is whole everywhere. Raises ValueError where a dimension does
    not divide; a quantised one divides between its `groups`.
    """
    for path, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Variable):
            _shard_parameter(".".join(map(str, path)), node, mesh)


def _shard_parameter(name: str, parameter: nnx.Variable[Any], mesh: Mesh) -> None:
    value, whole = parameter.get_value(), (1,) * parameter.get_value().ndim
    metadata = parameter.get_metadata()
    split = parameter_axes(parameter, partial(parts, mesh))
    for size, group, axes in zip(value.shape, metadata.get("groups", whole), split, strict=True):
        if (devices := parts(mesh, axes)) > 1 and size % (group * devices):
            raise ValueError(
                f"{name}: {size} of its {value.shape} cannot be split evenly over {devices} "
                f"devices, in groups of {group}"
            )
    parameter.set_metadata(mesh_axes=split)
    parameter.set_value(place(value, NamedSharding(mesh, spec_of(parameter))))


def place(value: Any, sharding: NamedSharding) -> Any:
    """An array, or one of NumPy's, moved to where it belongs, or a shape that says so."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    if getattr(value, "sharding", None) == sharding:
        return value
    # Cut on the host: on devices each shape would compile a program of its own.
    return jax.make_array_from_callback(value.shape, sharding, np.asarray(value).__getitem__)


def split_of(parameter: nnx.Variable[Any]) -> tuple[MeshAxes | None, ...]:
    """The mesh axes that split each dimension of a parameter, None where every device has all."""
    split = parameter.get_metadata().get("mesh_axes") or ((),) * parameter.get_value().ndim
    return tuple(names or None for names in split)


def variables(model: nnx.Module) -> list[nnx.Variable[Any]]:
    """A model's variables, in the order of its flattened arrays."""
    return jax.tree.leaves(nnx.state(model), is_leaf=lambda node: isinstance(node, nnx.Variable))


def spec_of(parameter: nnx.Variable[Any]) -> PartitionSpec:
    """How a parameter lies on its mesh."""
    return PartitionSpec(*split_of(parameter))


def mesh_of(model: nnx.Module) -> Mesh | None:
    """The mesh that a model's parameters lie on, None on a single device."""
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Variable) and "mesh_axes" in node.get_metadata():
            sharding = node.get_value().sharding
            assert isinstance(sharding, NamedSharding), "a sharded parameter has a named sharding"
            assert isinstance(sharding.mesh, Mesh), "of devices, not of their number alone"
            return sharding.mesh
    return None


def on_every_device(
    function: Callable[..., Any], mesh: Mesh | None, model: nnx.Module, out_specs: Any
) -> Callable[..., Any]:
    """function(model, *inputs) without its model, as each device runs it on its part of the model
    and on whole inputs."""
    if mesh is None:
        return partial(function, model)
    graph, state = nnx.split(model)
    specs = jax.tree.map(spec_of, state, is_leaf=lambda node: isinstance(node, nnx.Variable))

    def run(state: nnx.State, inputs: tuple[Any, ...]) -> Any:
        return function(nnx.merge(graph, state), *inputs)

    sharded = jax.shard_map(
        run, mesh=mesh, in_specs=(specs, PartitionSpec()), out_specs=out_specs, check_vma=False
    )
    return lambda *inputs: sharded(state, inputs)
