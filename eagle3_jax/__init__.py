"""Kimi-K2.5 and MiniMax-M2.5 with EAGLE-3 speculative decoding in JAX."""

from typing import TYPE_CHECKING

from eagle3_jax.lazy import lazy_names

if TYPE_CHECKING:
    from eagle3_jax.config import DraftConfig as DraftConfig
    from eagle3_jax.config import KimiConfig as KimiConfig
    from eagle3_jax.config import MiniMaxConfig as MiniMaxConfig
    from eagle3_jax.config import TargetConfig as TargetConfig
    from eagle3_jax.full_pass import TargetOutput as TargetOutput
    from eagle3_jax.full_pass import draft_forward as draft_forward
    from eagle3_jax.full_pass import forward as forward
    from eagle3_jax.generation import Generation as Generation
    from eagle3_jax.generation import generate as generate
    from eagle3_jax.models.eagle3 import Eagle3Draft as Eagle3Draft
    from eagle3_jax.models.grouped import GroupedQueryTarget as GroupedQueryTarget
    from eagle3_jax.models.kimi import KimiTarget as KimiTarget
    from eagle3_jax.models.target import Target as Target
    from eagle3_jax.models.vision import VisionModel as VisionModel
    from eagle3_jax.sampling.params import SamplingParams as SamplingParams
    from eagle3_jax.sampling.structured_outputs import StructuredOutputs as StructuredOutputs
    from eagle3_jax.vision.encode import encode_images as encode_images
    from eagle3_jax.vision.item import ImageItem as ImageItem
    from eagle3_jax.vision.item import PlacedImage as PlacedImage

__getattr__ = lazy_names(
    __name__,
    {
        "eagle3_jax.config": ("DraftConfig", "KimiConfig", "MiniMaxConfig", "TargetConfig"),
        "eagle3_jax.full_pass": ("TargetOutput", "draft_forward", "forward"),
        "eagle3_jax.generation": ("Generation", "generate"),
        "eagle3_jax.models.eagle3": ("Eagle3Draft",),
        "eagle3_jax.models.grouped": ("GroupedQueryTarget",),
        "eagle3_jax.models.kimi": ("KimiTarget",),
        "eagle3_jax.models.target": ("Target",),
        "eagle3_jax.models.vision": ("VisionModel",),
        "eagle3_jax.sampling.params": ("SamplingParams",),
        "eagle3_jax.sampling.structured_outputs": ("StructuredOutputs",),
        "eagle3_jax.vision.encode": ("encode_images",),
        "eagle3_jax.vision.item": ("ImageItem", "PlacedImage"),
    },
)
