"""AdamW with a warm-up, a plateau and a linear decay to zero."""

from typing import Any

import jax
import optax


def adamw(
    peak: float, steps: int, *, warmup: int = 100, decay_share: float = 0.3, accumulate: int = 1
) -> optax.GradientTransformation:
    """Make clipped AdamW that decays matrices only; `accumulate` gradients make one update.

    The plateau makes the past independent of `steps`: a run may be resumed with another length
    until its decay begins.
    """
    warmup = min(warmup, max(steps // 4, 1))
    decay = max(int(steps * decay_share), 1)
    schedule = optax.join_schedules(
        [
            optax.linear_schedule(0.0, peak, warmup),
            optax.constant_schedule(peak),
            optax.linear_schedule(peak, 0.0, decay),
        ],
        [warmup, max(steps - decay, warmup)],
    )
    update = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.adamw(schedule, b1=0.9, b2=0.98, weight_decay=0.05, mask=_matrices),
    )
    if accumulate == 1:
        return update
    return optax.MultiSteps(update, accumulate).gradient_transformation()


def _matrices(params: Any) -> Any:
    """Select matrices for weight decay; biases of joint heads are matrices too and are excluded."""

    def is_matrix(path: tuple[Any, ...], leaf: Any) -> bool:
        return leaf.ndim > 1 and "bias" not in jax.tree_util.keystr(path)

    return jax.tree_util.tree_map_with_path(is_matrix, params)
