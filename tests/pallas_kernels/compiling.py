"""Operations that are compiled once for all tests of a module."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax

from pallas_kernels import gpu
from pallas_kernels.dispatch import asks_for_exact_bits


def compiled(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Jit `call` with these options, once for each GPU that is assumed and for exact bits.

    JAX's caches see neither, so each gets a function of its own.
    """
    return _compiled(call, tuple(options.items()), gpu.current().arch, asks_for_exact_bits())


def compiled_anew(call: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Jit `call` with these options as the code is now, which a test may have changed."""
    return jax.jit(lambda *arrays, **named: call(*arrays, **options, **named))


@cache
def _compiled(call: Callable[..., Any], options: Any, arch: str, exact: bool) -> Any:
    return compiled_anew(call, **dict(options))
