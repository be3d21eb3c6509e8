"""Products of PyTorch's libraries, bare and with the work that our kernels include."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils.dlpack import from_dlpack

Arguments = tuple[Any, ...]
Peer = Callable[..., Any]


def library(name: str) -> Callable[..., torch.Tensor]:
    """Return a private function of torch. Raises AttributeError if it does not exist."""
    return getattr(torch, name)


def tensor(x: jax.Array) -> torch.Tensor:
    """Share an array's memory with torch; float8 goes as bytes, which every version supports."""
    if x.dtype.itemsize == 1 and jnp.issubdtype(x.dtype, jnp.floating):
        raw = from_dlpack(jax.lax.bitcast_convert_type(x, jnp.uint8))
        return raw.view(getattr(torch, str(x.dtype)))
    return from_dlpack(x)


def matmul(arguments: Arguments) -> Peer:
    x, w = map(tensor, arguments[:2])
    return lambda: x @ w


def scaled(arguments: Arguments) -> Peer:
    """Run a row-wise float8 product; x is quantised beforehand."""
    x, multiply, quantise = _scaled_parts(arguments)
    values, scale = quantise(x)
    return lambda: multiply(values, scale)


def scaled_unquantised(arguments: Arguments) -> Peer:
    """Run a row-wise float8 product; x is quantised in the timed part."""
    x, multiply, quantise = _scaled_parts(arguments)
    return lambda: multiply(*quantise(x))


def _scaled_parts(arguments: Arguments) -> tuple[torch.Tensor, Peer, Peer]:
    x, kernel = tensor(arguments[0]), arguments[1]
    w, w_scale = tensor(kernel.values), tensor(kernel.scale)[None]
    largest = torch.finfo(w.dtype).max

    def quantise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(1, keepdim=True).float() / largest
        return (x / scale).to(w.dtype), scale

    def multiply(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return library("_scaled_mm")(
            values, w.t(), scale, w_scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    return x.reshape(-1, x.shape[-1]), multiply, quantise


def argmax(arguments: Arguments) -> Peer:
    """Run the head's product and argmax, without the noise that our kernel adds."""
    x, head = map(tensor, arguments[:2])
    return lambda: (x @ head).argmax(-1)


def grouped(arguments: Arguments) -> Peer:
    """Run three grouped products and the activation. Rows are sorted by expert beforehand, and a
    token's experts are not summed."""
    x, multiply, sort, ids, _ = _grouped_parts(arguments)
    order, ends = sort(ids)
    rows = x[order // ids.shape[1]]
    return lambda: multiply(rows, ends)


def grouped_unsorted(arguments: Arguments) -> Peer:
    """Run `grouped` with the rest of our kernel: sorting by expert and tokens' weighted sums."""
    x, multiply, sort, ids, weights = _grouped_parts(arguments)

    def run() -> torch.Tensor:
        order, ends = sort(ids)
        tokens = order // ids.shape[1]
        down = multiply(x[tokens], ends) * weights.flatten()[order][:, None]
        return torch.zeros_like(x, dtype=torch.float32).index_add_(0, tokens, down.float())

    return run


def _grouped_parts(arguments: Arguments) -> tuple[torch.Tensor, Peer, Peer, Any, Any]:
    x, gate, up, down, ids, weights = map(tensor, jax.tree.leaves(arguments))
    experts = torch.arange(gate.shape[0], device=x.device, dtype=ids.dtype)

    def sort(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        by_expert, order = ids.flatten().sort()
        return order, torch.searchsorted(by_expert, experts, right=True).to(torch.int32)

    def multiply(rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        wide = library("_grouped_mm")(rows, up, offs=ends)
        inner = torch.nn.functional.silu(library("_grouped_mm")(rows, gate, offs=ends)) * wide
        return library("_grouped_mm")(inner, down, offs=ends)

    return x, multiply, sort, ids, weights
