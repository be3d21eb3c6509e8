"""Tell the user about warnings of the checkpoint importer and the division of KV caches."""

import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.mesh import mesh_of, parts
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from serve.options.parallel import ONE_DEVICE, ParallelOptions, notify_of_interleaving

Notify = Callable[[str], None]


def print_to_stderr(text: str) -> None:
    """Print a line for the user to standard error; standard output is for results."""
    print(text, file=sys.stderr)


class _Notices(logging.Handler):
    def __init__(self, notify: Notify) -> None:
        super().__init__(logging.WARNING)
        self._notify = notify

    def emit(self, record: logging.LogRecord) -> None:
        self._notify(f"note: {record.getMessage()}")


@contextmanager
def notices(notify: Notify) -> Iterator[None]:
    """Report each warning of the importer within the block as a line."""
    logger, handler = logging.getLogger("convert"), _Notices(notify)
    propagated = logger.propagate
    logger.addHandler(handler)
    # Some libraries configure the root logger, which would repeat every line.
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = propagated
        logger.removeHandler(handler)


def notify_of_divided_contexts(
    target: Target,
    draft: Eagle3Draft | None,
    config: EngineConfig,
    notify: Callable[[str], None],
    parallel: ParallelOptions = ONE_DEVICE,
) -> None:
    """Report the split of each KV cache: by positions, KV heads, both, or none.

    Without context parallelism, only caches with KV heads on several devices are reported. Also
    reports an interleaving size in `parallel` that differs from the engine's.
    """
    size = config.decode_context_parallel_size
    notify_of_interleaving(parallel.kv_cache_interleave_size, size, config.page_size, notify)
    for name, model in {"target": target, "draft": draft}.items():
        if model is not None and (size > 1 or _shares_heads(model)):
            how = _how(model, size)
            notify(f"KV cache of the {name}: {how}; a page is {config.page_tokens} tokens")


def _shares_heads(model: Target | Eagle3Draft) -> bool:
    """Return whether there are several KV heads, but fewer than devices."""
    context = model.contexts[0]
    return mesh_of(model) is not None and context is not None and context.heads > 1


def _how(model: Target | Eagle3Draft, size: int) -> str:
    context, mesh, heads = model.contexts[0], mesh_of(model), model.pool_splits[0][0]
    if mesh is None or context is heads is None:
        return "whole on every device"
    if context is None:
        devices = parts(mesh, heads or ())
        return f"divided by KV heads over {devices} devices, which leaves no context to divide"
    devices = parts(mesh, context.axes)
    divided = math.gcd(size, devices // context.heads)
    by_context = f"neighbours divide each context, {divided} at a time"
    if context.heads == 1:
        return by_context
    by_heads = f"divided by {context.heads} KV heads"
    if divided == 1:
        return f"{by_heads}, each whole on {devices // context.heads} devices"
    return f"{by_heads}, and {by_context}"
