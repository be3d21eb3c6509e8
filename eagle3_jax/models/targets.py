"""Registry of target modules by configuration class."""

from collections.abc import Mapping
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from eagle3_jax.config import GroupedQueryConfig, KimiConfig, TargetConfig
from eagle3_jax.models.grouped import GroupedQueryTarget
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.target import Target

TARGETS: Mapping[type[TargetConfig], Any] = {
    KimiConfig: KimiTarget,
    GroupedQueryConfig: GroupedQueryTarget,
}
"""Class of a configuration, or a base class of it -> the target's module."""


def make_target(config: TargetConfig, *, rngs: nnx.Rngs, dtype: DTypeLike) -> Target:
    """Make the target of a configuration, with random weights."""
    module = next(made for kind, made in TARGETS.items() if isinstance(config, kind))
    return module(config, rngs=rngs, dtype=dtype)
