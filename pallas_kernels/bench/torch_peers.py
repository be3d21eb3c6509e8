"""What PyTorch's libraries make of the same arguments; everything here may be missing or refuse."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.utils.dlpack import from_dlpack

from pallas_kernels import gpu
from pallas_kernels.bench.timing import Spread, sampled
from pallas_kernels.quantized import QuantizedArray

Arguments = tuple[Any, ...]
Peer = Callable[..., Any]


def torch_peers(operation: str, arguments: Arguments) -> dict[str, Callable[[Arguments], Peer]]:
    """Peer's name -> a function that takes arguments and returns what is timed."""
    leaves = jax.tree.leaves(arguments, is_leaf=lambda a: isinstance(a, QuantizedArray))
    quantised = any(isinstance(leaf, QuantizedArray) for leaf in leaves)
    if operation == "mla_decode":
        return {"torch two bmm": _two_products, "torch flex_attention": _flex_attention}
    if operation == "grouped_mlp":
        return {} if quantised else {"torch._grouped_mm": _grouped}
    if operation == "logits_argmax":
        return {} if quantised else {"torch matmul + argmax": _argmax}
    if operation in ("matmul", "fp8_matmul"):
        fp8 = quantised and arguments[1].format.weights == "fp8_channel"
        found = {"torch._scaled_mm": _scaled} if fp8 else {}
        return found if quantised else {"torch.matmul": _matmul}
    return {}


def time_torch(
    prepare: Callable[[Arguments], Peer], arguments: Sequence[Arguments], samples: int
) -> Spread:
    """One run of many in a row, replayed from a CUDA graph on a GPU. Raises what torch raises."""
    runs = [prepare(each) for each in arguments]
    on_gpu = torch.cuda.is_available()

    def together() -> None:
        for run in runs:
            run()

    together()
    replay = _graph(together) if on_gpu else together

    def call() -> None:
        replay()
        if on_gpu:
            torch.cuda.synchronize()

    return sampled(call, len(runs), samples)


def fp8_ceiling(size: int, samples: int) -> float:
    """Multiplications and additions a second of a square product of float8. Raises as torch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.randn(size, size, device=device).to(_fp8_dtype())
    one = torch.ones((), device=device)

    def prepare(_: Arguments) -> Peer:
        return lambda: _library("_scaled_mm")(a, a.t(), one, one, out_dtype=torch.bfloat16)

    return 2 * size**3 / time_torch(prepare, [()], samples).median * 1e6


def _library(name: str) -> Callable[..., torch.Tensor]:
    """What torch has under a name that is not public. Raises AttributeError where it has not."""
    return getattr(torch, name)


def _graph(call: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def _tensor(x: jax.Array) -> torch.Tensor:
    """The same memory. float8 goes as bytes, for which every version knows a name."""
    if x.dtype.itemsize == 1 and jnp.issubdtype(x.dtype, jnp.floating):
        raw = from_dlpack(jax.lax.bitcast_convert_type(x, jnp.uint8))
        return raw.view(getattr(torch, str(x.dtype)))
    return from_dlpack(x)


def _fp8_dtype() -> torch.dtype:
    return getattr(torch, str(jnp.dtype(gpu.current().fp8)))


def _matmul(arguments: Arguments) -> Peer:
    x, w = map(_tensor, arguments[:2])
    return lambda: x @ w


def _scaled(arguments: Arguments) -> Peer:
    """Row-wise; x is quantised before, which our kernel does itself."""
    x, kernel = _tensor(arguments[0]), arguments[1]
    w, w_scale = _tensor(kernel.values), _tensor(kernel.scale)[None]
    x = x.reshape(-1, x.shape[-1])
    scale = x.abs().amax(1, keepdim=True).float() / torch.finfo(w.dtype).max
    quantised = (x / scale).to(w.dtype)
    return lambda: _library("_scaled_mm")(
        quantised, w.t(), scale, w_scale, out_dtype=torch.bfloat16, use_fast_accum=True
    )


def _argmax(arguments: Arguments) -> Peer:
    x, head = map(_tensor, arguments[:2])
    return lambda: (x @ head).argmax(-1)


def _grouped(arguments: Arguments) -> Peer:
    """Rows sorted by expert before; three grouped products and the activation."""
    x, gate, up, down, ids, _ = map(_tensor, jax.tree.leaves(arguments))
    order = ids.flatten().argsort()
    rows = x[order // ids.shape[1]]
    counts = torch.bincount(ids.flatten(), minlength=gate.shape[0])
    ends = counts.cumsum(0).to(torch.int32)

    def run() -> torch.Tensor:
        wide = _library("_grouped_mm")(rows, up, offs=ends)
        inner = torch.nn.functional.silu(_library("_grouped_mm")(rows, gate, offs=ends)) * wide
        return _library("_grouped_mm")(inner, down, offs=ends)

    return run


def _context(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries [batch, rows * heads, width], the context without pages, and its latents."""
    q_latent, q_rope, paged = arguments[:3]
    (pool,) = paged.pools
    if pool.dtype != q_latent.dtype:
        raise NotImplementedError(f"queries of {q_latent.dtype} on a context of {pool.dtype}")
    query = jnp.concatenate([q_latent, q_rope], axis=-1)
    rows = jnp.take(pool, paged.page_table, axis=0).reshape(query.shape[0], -1, query.shape[-1])
    query = query.reshape(query.shape[0], -1, query.shape[-1])
    return _tensor(query), _tensor(rows), _tensor(rows[..., : q_latent.shape[-1]])


def _two_products(arguments: Arguments) -> Peer:
    """On a context that was gathered before; no mask."""
    query, rows, latents = _context(arguments)
    return lambda: torch.softmax(query @ rows.transpose(1, 2) * 192**-0.5, -1) @ latents


def _flex_attention(arguments: Arguments) -> Peer:
    from torch.nn.attention.flex_attention import flex_attention

    query, rows, latents = (x[:, None] for x in _context(arguments))
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(query, rows, latents, scale=192**-0.5)
