"""MoonViT and the projector of Kimi-K2.5: image patches to rows that replace token embeddings."""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, UInt8

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.layers.affine import BiasedLinear, JointHeads, LayerNorm
from eagle3_jax.layers.linear import Axes, normal_param
from eagle3_jax.layers.patch_positions import (
    PatchPositions,
    learned_positions,
    rotate_pairs,
    rotation_angles,
    time_positions,
)
from pallas_kernels import item_attention

TOWER_EPS = 1e-5


@dataclass(frozen=True)
class TowerAxes:
    """Logical axes of the heads and of the columns between two products; None: not split."""

    heads: str | None = None
    wide: str | None = None

    @property
    def widening(self) -> Axes:
        """Axes of the first of two products, whose outputs are split."""
        return (None, self.wide)

    @property
    def narrowing(self) -> Axes:
        """Axes of the second product, whose inputs are split and whose outputs are summed."""
        return (self.wide, None)


WHOLE, SPLIT = TowerAxes(), TowerAxes("heads", "mlp")


class PatchProjection(nnx.Module):
    """Convolution with stride equal to its size, as one product. Weight: [hidden, 3, p, p]."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        shape = (config.hidden_size, 3, config.patch_size, config.patch_size)
        self.weight = normal_param(shape, (None,) * 4, rngs, dtype)
        self.bias = nnx.Param(jnp.zeros(shape[:1], dtype), axes=(None,))

    def __call__(self, pixels: Float[Array, "n colours p p"]) -> Float[Array, "n hidden"]:
        weight, bias = self.weight.get_value(), self.bias.get_value()
        return pixels.reshape(len(pixels), -1) @ weight.reshape(len(weight), -1).T + bias


class PositionTable(nnx.Module):
    """The learned position table: [height, width, hidden]."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        shape = (config.pos_emb_height, config.pos_emb_width, config.hidden_size)
        self.weight = normal_param(shape, (None,) * 3, rngs, dtype)


class PatchEmbedding(nnx.Module):
    """Embed pixels and positions as the tower's input."""

    def __init__(self, config: VisionConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.proj = PatchProjection(config, rngs=rngs, dtype=dtype)
        self.pos_emb = PositionTable(config, rngs=rngs, dtype=dtype)
        self.pixels = config.pixels

    def __call__(
        self, patches: UInt8[Array, "n colours p p"], places: PatchPositions
    ) -> Float[Array, "n hidden"]:
        dtype = self.proj.weight.get_value().dtype
        mean, std = (
            jnp.array(c, jnp.float32)[:, None, None]
            for c in (self.pixels.image_mean, self.pixels.image_std)
        )
        pixels = (patches.astype(jnp.float32) / 255 - mean) * (1 / std)
        x = self.proj(pixels.astype(dtype))
        positions = learned_positions(self.pos_emb.weight.get_value(), places)
        positions += time_positions(places, x.shape[-1])
        return (x.astype(jnp.float32) + positions).astype(dtype)


class VisionMLP(nnx.Module):
    """MLP with tanh-approximated gelu: fc1(gelu(fc0(x)))."""

    def __init__(self, config: VisionConfig, axes: TowerAxes, *, rngs: nnx.Rngs, dtype: DTypeLike):
        hidden, wide = config.hidden_size, config.intermediate_size
        self.fc0 = BiasedLinear(hidden, wide, rngs=rngs, dtype=dtype, axes=axes.widening)
        self.fc1 = BiasedLinear(wide, hidden, rngs=rngs, dtype=dtype, axes=axes.narrowing)

    def __call__(self, x: Float[Array, "n hidden"]) -> Float[Array, "n hidden"]:
        return self.fc1(jax.nn.gelu(self.fc0(x), approximate=True))


class VisionBlock(nnx.Module):
    """Pre-norm block: x += attention(norm0(x)); x += mlp(norm1(x))."""

    def __init__(self, config: VisionConfig, axes: TowerAxes, *, rngs: nnx.Rngs, dtype: DTypeLike):
        hidden = config.hidden_size
        self.norm0 = LayerNorm(hidden, TOWER_EPS, dtype=dtype)
        self.wqkv = JointHeads(hidden, hidden, rngs=rngs, dtype=dtype, heads=axes.heads)
        self.wo = BiasedLinear(hidden, hidden, rngs=rngs, dtype=dtype, axes=(axes.heads, None))
        self.norm1 = LayerNorm(hidden, TOWER_EPS, dtype=dtype)
        self.mlp = VisionMLP(config, axes, rngs=rngs, dtype=dtype)
        self.head_dim = config.head_dim

    def __call__(
        self, x: Float[Array, "n hidden"], angles: Float[Array, "n half"], items: Int[Array, " n"]
    ) -> Float[Array, "n hidden"]:
        qkv = self.wqkv(self.norm0(x)).reshape(len(x), 3, -1, self.head_dim)
        q, k = (rotate_pairs(qkv[:, i], angles) for i in (0, 1))
        attended = item_attention(q, k, qkv[:, 2], items, self.head_dim**-0.5)
        x = x + self.wo(attended.reshape(len(x), -1))
        return x + self.mlp(self.norm1(x))


class VisionEncoder(nnx.Module):
    """All blocks and the final norm."""

    def __init__(self, config: VisionConfig, axes: TowerAxes, *, rngs: nnx.Rngs, dtype: DTypeLike):
        blocks = range(config.num_hidden_layers)
        self.blocks = nnx.List([VisionBlock(config, axes, rngs=rngs, dtype=dtype) for _ in blocks])
        self.final_layernorm = LayerNorm(config.hidden_size, TOWER_EPS, dtype=dtype)

    def __call__(
        self, x: Float[Array, "n hidden"], angles: Float[Array, "n half"], items: Int[Array, " n"]
    ) -> Float[Array, "n hidden"]:
        # All blocks are traced and compiled once.
        run = jax.jit(
            lambda graph, state, *inputs: nnx.merge(graph, state)(*inputs), static_argnums=0
        )
        for block in self.blocks:
            x = run(*nnx.split(block), x, angles, items)
        return self.final_layernorm(x)


class VisionTower(nnx.Module):
    """Vision tower: patches to states, in the patches' order."""

    def __init__(self, config: VisionConfig, axes: TowerAxes, *, rngs: nnx.Rngs, dtype: DTypeLike):
        self.patch_embed = PatchEmbedding(config, rngs=rngs, dtype=dtype)
        self.encoder = VisionEncoder(config, axes, rngs=rngs, dtype=dtype)
        self.head_dim = config.head_dim

    def __call__(
        self, patches: UInt8[Array, "n colours p p"], places: PatchPositions
    ) -> Float[Array, "n hidden"]:
        x = self.patch_embed(patches, places)
        return self.encoder(x, rotation_angles(places, self.head_dim), places.item)


class ExactGelu(nnx.Module):
    """Exact gelu, by the error function."""

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        return jax.nn.gelu(x, approximate=False)


class Projector(nnx.Module):
    """Project a token's patches, each normed, to one row of the text model."""

    def __init__(self, config: VisionConfig, axes: TowerAxes, *, rngs: nnx.Rngs, dtype: DTypeLike):
        wide, text = config.token_patches * config.hidden_size, config.text_hidden_size
        self.pre_norm = LayerNorm(config.hidden_size, config.projector_ln_eps, dtype=dtype)
        self.proj = nnx.List(
            [
                BiasedLinear(wide, wide, rngs=rngs, dtype=dtype, axes=axes.widening),
                ExactGelu(),
                BiasedLinear(wide, text, rngs=rngs, dtype=dtype, axes=axes.narrowing),
            ]
        )

    def __call__(self, x: Float[Array, "tokens patches hidden"]) -> Float[Array, "tokens text"]:
        x = self.pre_norm(x).reshape(len(x), -1)
        for step in self.proj:
            x = step(x)
        return x


class VisionModel(nnx.Module):
    """Tower and projector, under the released parameter names.

    With `split`, devices of a mesh divide heads and wide columns and sum twice per block. Otherwise
    each device holds all weights.
    """

    def __init__(
        self,
        config: VisionConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        split: bool = False,
    ):
        axes = SPLIT if split else WHOLE
        self.config, self.split = config, split
        self.vision_tower = VisionTower(config, axes, rngs=rngs, dtype=dtype)
        self.mm_projector = Projector(config, axes, rngs=rngs, dtype=dtype)

    @property
    def units(self) -> dict[str, int]:
        """Number of indivisible units on each split logical axis."""
        if not self.split:
            return {}
        config = self.config
        wide = math.gcd(config.intermediate_size, config.token_patches * config.hidden_size)
        return {"heads": config.num_attention_heads, "mlp": wide}

    def __call__(
        self,
        patches: UInt8[Array, "n colours p p"],
        places: PatchPositions,
        frame_rows: Int[Array, "tokens frames"] | None = None,
    ) -> Float[Array, "rows text"]:
        """Compute float32 features of every token.

        The patches of a token in a frame are adjacent, row by row. `frame_rows` gives each token's
        place in every frame, counted in groups of such patches, -1 if its item has fewer frames. It
        is None if all items are images.
        """
        states = self.vision_tower(patches, places)
        groups = states.reshape(-1, self.config.token_patches, states.shape[-1])
        if frame_rows is not None:
            groups = _mean_over_frames(groups, frame_rows)
        return self.mm_projector(groups).astype(jnp.float32)


def _mean_over_frames(
    groups: Float[Array, "groups patches hidden"], frame_rows: Int[Array, "tokens frames"]
) -> Float[Array, "tokens patches hidden"]:
    there = frame_rows >= 0
    total = jnp.zeros((len(frame_rows), *groups.shape[1:]), jnp.float32)
    for frame in range(frame_rows.shape[1]):
        total += jnp.where(there[:, frame, None, None], groups[frame_rows[:, frame]], 0)
    return (total / jnp.maximum(there.sum(1), 1)[:, None, None]).astype(groups.dtype)
