"""Kimi-K2.5 with EAGLE-3 speculative decoding in JAX."""

from eagle3_jax.config import DraftConfig as DraftConfig
from eagle3_jax.config import KimiConfig as KimiConfig
from eagle3_jax.config import MiniMaxConfig as MiniMaxConfig
from eagle3_jax.config import TargetConfig as TargetConfig
from eagle3_jax.forward import TargetOutput as TargetOutput
from eagle3_jax.forward import draft_forward as draft_forward
from eagle3_jax.forward import forward as forward
from eagle3_jax.generate import Generation as Generation
from eagle3_jax.generate import generate as generate
from eagle3_jax.models.eagle3 import Eagle3Draft as Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget as KimiTarget
from eagle3_jax.models.minimax import MiniMaxTarget as MiniMaxTarget
from eagle3_jax.models.target import Target as Target
from eagle3_jax.sampling_params import SamplingParams as SamplingParams
from eagle3_jax.structured_outputs import StructuredOutputs as StructuredOutputs
