"""The engine: host-side scheduling over compiled programs."""

from typing import TYPE_CHECKING

from eagle3_jax.lazy import lazy_names

if TYPE_CHECKING:
    from eagle3_jax.engine.acceptance import Acceptance as Acceptance
    from eagle3_jax.engine.acceptance import Round as Round
    from eagle3_jax.engine.config import EngineConfig as EngineConfig
    from eagle3_jax.engine.config import KVScales as KVScales
    from eagle3_jax.engine.engine import Engine as Engine
    from eagle3_jax.engine.logprob_rows import Logprob as Logprob
    from eagle3_jax.engine.request import BARS_EVERY_TOKEN as BARS_EVERY_TOKEN
    from eagle3_jax.engine.request import GRAMMAR_FAILED as GRAMMAR_FAILED
    from eagle3_jax.engine.request import CollectedOutput as CollectedOutput
    from eagle3_jax.engine.request import Request as Request
    from eagle3_jax.engine.request import RequestOutput as RequestOutput
    from eagle3_jax.engine.stats import EngineStats as EngineStats

__getattr__ = lazy_names(
    __name__,
    {
        "eagle3_jax.engine.acceptance": ("Acceptance", "Round"),
        "eagle3_jax.engine.config": ("EngineConfig", "KVScales"),
        "eagle3_jax.engine.engine": ("Engine",),
        "eagle3_jax.engine.logprob_rows": ("Logprob",),
        "eagle3_jax.engine.request": (
            "BARS_EVERY_TOKEN",
            "GRAMMAR_FAILED",
            "CollectedOutput",
            "Request",
            "RequestOutput",
        ),
        "eagle3_jax.engine.stats": ("EngineStats",),
    },
)
