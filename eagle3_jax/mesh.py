"""The device mesh, and the sharding of model parameters.

Layers name logical axes; only this file maps them to mesh axes. A program is the computation of one
device (`jax.shard_map`): a parameter is the device's part, and layers sum partial products
themselves according to the parameter's `mesh_axes`.
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
"""Mesh axes of all devices that run the same rows, as many as tensor parallelism has. With expert
parallelism they are along `expert` and hold whole experts, else along `tensor` and hold a part of
each. A mesh with an axis `data` has several such replicas, each with its own rows; only routed
experts are divided over all replicas."""

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
"""Logical axis -> mesh axes; none if every device holds all of it."""


def make_mesh(
    tensor_parallel_size: int,
    *,
    enable_expert_parallel: bool = False,
    data_parallel_size: int = 1,
    devices: Sequence[Any] | None = None,
) -> Mesh:
    """Make a mesh of the first devices: replicas of `tensor_parallel_size` devices each.

    Raises ValueError for too few devices, several kinds, or replicas without whole experts.
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
    """Return the mesh axes that split each dimension with these logical axes.

    Raises ValueError if one mesh axis would split two dimensions.
    """
    split = tuple(RULES[name] if name else () for name in axes)
    used = [axis for dimension in split for axis in dimension]
    if len(used) > len(set(used)):
        raise ValueError(f"axes {tuple(axes)} collide: one mesh axis would split two of them")
    return split


def parameter_axes(
    parameter: nnx.Variable[Any], count: Callable[[MeshAxes], int]
) -> tuple[MeshAxes, ...]:
    """Return the mesh axes that split each dimension; `count` gives the parts that axes make.

    A parameter of KV heads (by its metadata) is whole if several devices share each head. An axis
    of one device splits nothing.
    """
    metadata = parameter.get_metadata()
    axes = metadata.get("axes") or (None,) * parameter.get_value().ndim
    heads = metadata.get(KV_HEADS)
    if heads is not None and sharers(heads, count(RULES[KV_HEADS])) > 1:
        axes = [None if name == KV_HEADS else name for name in axes]
    return tuple(tuple(a for a in names if count((a,)) > 1) for names in mesh_axes(axes))


def check_units(units: Mapping[str, int], mesh: Mesh) -> None:
    """Raise ValueError if the mesh does not divide the units of a logical axis.

    Units are indivisible parts: for `heads` the heads, not their columns.
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
    """Return whether devices can have equal parts of a logical axis."""
    return units % devices == 0 or (axis == KV_HEADS and sharers(units, devices) > 1)


def sharers(kv_heads: int, devices: int) -> int:
    """Return the number of devices per KV head: 1 unless devices are a multiple of the heads."""
    return 1 if devices % kv_heads else devices // kv_heads


UNIT_NAMES: Mapping[str, str] = {
    "heads": "attention heads",
    KV_HEADS: "KV heads",
    "mlp": "columns of a feed-forward block",
    "vocab": "tokens of a vocabulary",
    "expert": "experts",
    "expert_mlp": "columns of an expert",
}
"""Logical axis -> name of its indivisible units."""


def parts(mesh: Mesh, axes: MeshAxes) -> int:
    """Return the number of parts that mesh axes make; missing axes make one."""
    return math.prod(mesh.shape.get(axis, 1) for axis in axes)


def replicas(mesh: Mesh | None) -> int:
    """Return the number of replicas, which run their own rows."""
    return 1 if mesh is None else parts(mesh, (DATA,))


def shard(model: nnx.Module, mesh: Mesh) -> None:
    """Put every parameter of a model on the mesh; shapes get shardings.

    A parameter without logical axes is replicated. A quantised parameter divides between its
    `groups`. Raises ValueError if a dimension does not divide.
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
    """Move an array to its sharding, or set the sharding of a shape."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    if getattr(value, "sharding", None) == sharding:
        return value
    # Sliced on the host: on devices each shape would compile a program of its own.
    return jax.make_array_from_callback(value.shape, sharding, np.asarray(value).__getitem__)


def split_of(parameter: nnx.Variable[Any]) -> tuple[MeshAxes | None, ...]:
    """Return the mesh axes that split each dimension; None where every device has all of it."""
    split = parameter.get_metadata().get("mesh_axes") or ((),) * parameter.get_value().ndim
    return tuple(names or None for names in split)


def variables(model: nnx.Module) -> list[nnx.Variable[Any]]:
    """Return a model's variables, in the order of its flattened arrays."""
    return jax.tree.leaves(nnx.state(model), is_leaf=lambda node: isinstance(node, nnx.Variable))


def spec_of(parameter: nnx.Variable[Any]) -> PartitionSpec:
    return PartitionSpec(*split_of(parameter))


def mesh_of(model: nnx.Module) -> Mesh | None:
    """Return the mesh of a model's parameters, or None on a single device."""
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
    """Bind `model` to function(model, *inputs), run per device on its part and on whole inputs."""
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
