"""Registry of target modules by configuration class."""

from collections.abc import Mapping
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from eagle3_jax.config import KimiConfig, LlamaConfig, MiniMaxConfig, TargetConfig
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.llama import LlamaTarget
from eagle3_jax.models.minimax import MiniMaxTarget
from eagle3_jax.models.target import Target

TARGETS: Mapping[type[TargetConfig], Any] = {
    KimiConfig: KimiTarget,
    MiniMaxConfig: MiniMaxTarget,
    LlamaConfig: LlamaTarget,
}


def make_target(config: TargetConfig, *, rngs: nnx.Rngs, dtype: DTypeLike) -> Target:
    """Make the target of a configuration, with random weights."""
    return TARGETS[type(config)](config, rngs=rngs, dtype=dtype)
