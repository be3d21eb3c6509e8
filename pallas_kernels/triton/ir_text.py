"""Export of a kernel as the text of its Triton IR, which XLA compiles without Pallas."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
from jax._src.interpreters.mlir import JaxIrContext, upstream_dialects
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.triton import dialect

from pallas_kernels import gpu

CALL_TARGET = "__gpu$xla.gpu.triton"


def triton_ir(kernel: Callable[..., Any], *shapes: Any, name: str | None = None) -> dict[str, Any]:
    """Return the Triton IR of a function that launches one kernel (one named `name`) and its launch
    parameters, as `call_triton_ir` takes them, with `aliases`: the result that each argument which
    is written in place becomes. shapes: trees of ShapeDtypeStruct, whose leaves are the IR's
    arguments."""
    platform = "rocm" if gpu.current().is_amd else "cuda"
    with abstract_gpu(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = jax.jit(lambda *a: kernel(*a)).trace(*shapes)
        module: Any = traced.lower(lowering_platforms=(platform,)).compiler_ir()
    calls = [
        {entry.name: entry.attr for entry in ir.DictAttr(op.attributes["mhlo.backend_config"])}
        | {"aliases": op.attributes["output_operand_aliases"]}
        for function in module.body
        for op in function.regions[0].blocks[0]
        if op.name == "stablehlo.custom_call"
        and CALL_TARGET in str(op.attributes["call_target_name"])
    ]
    calls = [c for c in calls if name is None or ir.StringAttr(c["name"]).value == name]
    if len(calls) != 1:
        raise ValueError(f"expected a function that launches one kernel, got {len(calls)}")
    found = calls[0]
    numbers = ("num_stages", "num_warps", "grid_x", "grid_y", "grid_z")
    return {
        "name": ir.StringAttr(found["name"]).value,
        "ir": _as_text(ir.StringAttr(found["ir"]).value_bytes),
        **{key: ir.IntegerAttr(found[key]).value for key in numbers},
        "aliases": dict(map(_alias, ir.ArrayAttr(found["aliases"]))),
    }


def call_triton_ir(
    program: Mapping[str, Any], out: jax.ShapeDtypeStruct | Sequence[jax.ShapeDtypeStruct]
) -> Callable[..., Any]:
    """Return a function that launches a kernel exported by `triton_ir`, without Pallas."""
    fixed: dict[str, Any] = {
        k: np.int32(v) if isinstance(v, int) else v for k, v in program.items()
    }
    aliases = fixed.pop("aliases")
    call = jax.ffi.ffi_call(
        CALL_TARGET, out, custom_call_api_version=4, input_output_aliases=aliases
    )
    return lambda *arrays: call(*arrays, **fixed, debug=False)


def abstract_gpu() -> AbstractContextManager[Any]:
    """Return a context that tells JAX (0.11 and later) the GPU to lower for without a device."""
    if jax.__version_info__ < (0, 11):
        return nullcontext()
    from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

    device = AbstractDevice(gpu.current().kind, None, "gpu")
    return use_abstract_mesh(
        AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    )


def _alias(attribute: ir.Attribute) -> tuple[int, int]:
    """Return an argument and the result that it becomes, 0 if there is only one."""
    alias = stablehlo.OutputOperandAlias(attribute)
    return alias.operand_index, next(iter(alias.output_tuple_indices), 0)


def _as_text(bytecode: bytes) -> str:
    context = JaxIrContext()
    context.append_dialect_registry(upstream_dialects)
    dialect.register_dialect(context)
    context.load_all_available_dialects()
    with context:
        return str(ir.Module.parse(bytecode))
