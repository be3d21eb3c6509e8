"""Frozen model configurations, read from the published `config.json` under its own field names.

A field that changes the arithmetic and is not implemented raises an error. A checkpoint either runs
as its authors intended or does not load.
"""

from eagle3_jax.config.draft import AuxIdConvention as AuxIdConvention
from eagle3_jax.config.draft import DraftConfig as DraftConfig
from eagle3_jax.config.draft import canonical_aux_layer_ids as canonical_aux_layer_ids
from eagle3_jax.config.draft import default_aux_layer_ids as default_aux_layer_ids
from eagle3_jax.config.kimi import KimiConfig as KimiConfig
from eagle3_jax.config.latent import LatentAttentionConfig as LatentAttentionConfig
from eagle3_jax.config.latent import LatentShape as LatentShape
from eagle3_jax.config.minimax import MiniMaxConfig as MiniMaxConfig
from eagle3_jax.config.rope import RopeConfig as RopeConfig
from eagle3_jax.config.rope import YarnConfig as YarnConfig
from eagle3_jax.config.target import GroupedQueryConfig as GroupedQueryConfig
from eagle3_jax.config.target import MoEConfig as MoEConfig
from eagle3_jax.config.target import TargetConfig as TargetConfig
from eagle3_jax.config.targets import read_target_config as read_target_config
