"""The one engine: host-side scheduling over compiled programs."""

from eagle3_jax.engine.acceptance import Acceptance as Acceptance
from eagle3_jax.engine.acceptance import Round as Round
from eagle3_jax.engine.config import EngineConfig as EngineConfig
from eagle3_jax.engine.engine import Engine as Engine
from eagle3_jax.engine.kv_scales import KVScales as KVScales
from eagle3_jax.engine.logprobs import Logprob as Logprob
from eagle3_jax.engine.request import BARS_EVERY_TOKEN as BARS_EVERY_TOKEN
from eagle3_jax.engine.request import GRAMMAR_FAILED as GRAMMAR_FAILED
from eagle3_jax.engine.request import Request as Request
from eagle3_jax.engine.request import RequestOutput as RequestOutput
from eagle3_jax.engine.stats import EngineStats as EngineStats
