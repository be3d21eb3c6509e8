"""PyTorch's implementations of a case; any of them may be missing or fail."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from eagle3_tools.kernel_bench.peers import FLEX
from eagle3_tools.kernel_bench.peers.attention import flash_mla, flex_attention, two_products
from eagle3_tools.kernel_bench.peers.products import (
    argmax,
    grouped,
    grouped_unsorted,
    library,
    matmul,
    scaled,
    scaled_unquantised,
)
from eagle3_tools.kernel_bench.timing import Spread, sampled
from pallas_kernels import gpu
from pallas_kernels.quantized import QuantizedArray

Arguments = tuple[Any, ...]
Peer = Callable[..., Any]
Prepare = Callable[[Arguments], Peer]


def torch_peers(operation: str, arguments: Arguments) -> dict[str, Prepare]:
    """Return peer name -> function that takes arguments and returns the timed function."""
    leaves = jax.tree.leaves(arguments, is_leaf=lambda a: isinstance(a, QuantizedArray))
    quantised = any(isinstance(leaf, QuantizedArray) for leaf in leaves)
    if operation == "mla_decode":
        return {"flash_mla": flash_mla, "torch two bmm": two_products, FLEX: flex_attention}
    if operation == "fp8_matmul" and arguments[1].format.weights == "fp8_channel":
        both = {"torch._scaled_mm": scaled}
        both["torch._scaled_mm with quantising"] = scaled_unquantised
        return both
    if quantised:
        return {}
    if operation == "grouped_mlp":
        both = {"torch._grouped_mm": grouped}
        both["torch._grouped_mm with sorting and sum"] = grouped_unsorted
        return both
    found: dict[str, dict[str, Prepare]] = {
        "logits_argmax": {"torch matmul + argmax": argmax},
        "matmul": {"torch.matmul": matmul},
    }
    return found.get(operation, {})


def time_torch(prepare: Prepare, arguments: Sequence[Arguments], runs: int, samples: int) -> Spread:
    """Time one of `runs` runs in sequence (a CUDA graph on a GPU). Raises torch's errors."""
    prepared = [prepare(each) for each in arguments]
    on_gpu = torch.cuda.is_available()

    def together() -> None:
        for i in range(runs):
            prepared[i % len(prepared)]()

    together()
    replay = _graph(together) if on_gpu else together

    def call() -> None:
        replay()
        if on_gpu:
            torch.cuda.synchronize()

    return sampled(call, runs, samples)


def bf16_ceiling(size: int, samples: int) -> float:
    """Return the operations a second of a square bfloat16 product. Raises torch's errors."""
    a = torch.randn(size, size, device=_device(), dtype=torch.bfloat16)
    return _a_second(size, lambda: a @ a.t(), samples)


def fp8_ceiling(size: int, samples: int) -> float:
    """Return the operations a second of a square float8 product."""
    a = torch.randn(size, size, device=_device()).to(
        getattr(torch, str(jnp.dtype(gpu.current().fp8)))
    )
    one = torch.ones((), device=_device())
    multiply = library("_scaled_mm")
    return _a_second(size, lambda: multiply(a, a.t(), one, one, out_dtype=torch.bfloat16), samples)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _a_second(size: int, product: Peer, samples: int) -> float:
    return 2 * size**3 / time_torch(lambda _: product, [()], 1, samples).median * 1e6


def _graph(call: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
