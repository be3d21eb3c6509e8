"""What decode context parallelism divides of a pair, in a line for whoever started it."""

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


def say_divided(target: Target, draft: Eagle3Draft | None, size: int) -> str:
    """Which KV caches `size` neighbouring devices divide by positions, and why others not."""
    models = {"target": target, "draft": draft}
    divided = {name: _is_divided(model) for name, model in models.items() if model is not None}
    names = [name for name, is_divided in divided.items() if is_divided]
    others = [name for name, is_divided in divided.items() if not is_divided]
    parts = f"{size} devices divide the contexts of {' and '.join(names)}" if names else ""
    left = (
        f"the {' and '.join(others)} keeps whole contexts, of this device's KV heads alone where "
        "devices split them"
    )
    return "; ".join(part for part in (parts, left if others else "") if part)


def _is_divided(model: Target | Eagle3Draft) -> bool:
    return any(axes is not None for axes in model.context_axes)
