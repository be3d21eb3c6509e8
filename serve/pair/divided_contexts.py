"""What decode context parallelism divides of a pair, in a line for whoever started it."""

from collections.abc import Callable

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


def say_divided(
    target: Target, draft: Eagle3Draft | None, config: EngineConfig, say: Callable[[str], None]
) -> None:
    """Which caches neighbouring devices divide by positions, and which they don't; nothing where
    they are not asked to."""
    if (size := config.decode_context_parallel_size) == 1:
        return
    divided: dict[bool, list[str]] = {True: [], False: []}
    for name, model in {"target": target, "draft": draft}.items():
        if model is not None:
            divided[any(axes is not None for axes in model.context_axes)].append(name)
    if names := " and ".join(divided[True]):
        say(f"{size} devices divide the KV cache of {names}: a page is {config.page_tokens} tokens")
    if names := " and ".join(divided[False]):
        say(
            f"--decode-context-parallel-size divides nothing of the {names}: KV heads that are "
            "split are divided already, and what is whole on every device stays whole"
        )
