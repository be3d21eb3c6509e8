"""Preprocessing, tower and projector once more, from the model's description alone: NumPy, float64,
one item at a time. `config` is config.json's and preprocessor_config.json's fields; weights have
their published names and layouts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf


@dataclass(frozen=True)
class Numbers:
    """What the two files say. limit: patches of an image; each, video: of frames."""

    heads: int
    layers: int
    patch: int
    merge: int
    eps: float
    mean: Sequence[float]
    std: Sequence[float]
    limit: int
    each: int | None
    video: int | None
    side: int

    @classmethod
    def of(cls, vision: Mapping[str, Any], media: Mapping[str, Any]) -> "Numbers":
        return cls(
            vision["vt_num_attention_heads"],
            vision["vt_num_hidden_layers"],
            vision["patch_size"],
            vision["merge_kernel_size"][0],
            vision["projector_ln_eps"],
            media["image_mean"],
            media["image_std"],
            media["in_patch_limit"],
            media["in_patch_limit_each_frame"],
            media["in_patch_limit_video"],
            media["patch_limit_on_one_side"],
        )


def patches_of(frames: Sequence[np.ndarray], n: Numbers, *, video: bool) -> np.ndarray:
    """uint8 [frames, rows, columns, 3, p, p] of pictures [height, width, 3] of one size."""
    limit = n.limit
    if video:
        limit = n.each or n.limit
        if n.video is not None:
            limit = min(round(n.video / len(frames)), limit)
    p, (height, width, _) = n.patch, frames[0].shape
    most, step = n.side * p, p * n.merge
    patches = max(1, width // p) * max(1, height // p)
    scale = min(1.0, math.sqrt(limit / patches), most / width, most / height)
    new_h, new_w = (min(max(1, int(size * scale)), most) for size in (height, width))
    rows, columns = (math.ceil(size / step) * n.merge for size in (new_h, new_w))
    cut = np.zeros((len(frames), rows * p, columns * p, 3), np.uint8)
    for frame, pixels in zip(cut, frames, strict=True):
        # Columns, then rows.
        wide = resampled(pixels.swapaxes(0, 1), new_w).swapaxes(0, 1)
        frame[:new_h, :new_w] = resampled(wide, new_h)
    return cut.reshape(-1, rows, p, columns, p, 3).transpose(0, 1, 3, 5, 2, 4)


def resampled(pixels: np.ndarray, size: int) -> np.ndarray:
    """The first axis by Pillow's bicubic in its fixed-point arithmetic."""
    before = len(pixels)
    if before == size:
        return pixels
    scale = before / size
    spread = max(scale, 1.0)
    out = np.zeros((size, *pixels.shape[1:]), np.uint8)
    for i in range(size):
        centre = (i + 0.5) * scale
        low = max(0, int(centre - 2 * spread + 0.5))
        high = min(before, int(centre + 2 * spread + 0.5))
        taps = np.array([keys((j - centre + 0.5) / spread, -0.5) for j in range(low, high)])
        taps = taps / taps.sum() * 2**22
        whole = np.trunc(np.where(taps < 0, taps - 0.5, taps + 0.5)).astype(np.int64)
        total = np.tensordot(whole, pixels[low:high].astype(np.int64), 1)
        out[i] = np.clip((total + 2**21) >> 22, 0, 255)
    return out


def keys(x: float, a: float) -> float:
    """The cubic convolution kernel."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def features_of(patches: np.ndarray, n: Numbers, weights: Mapping[str, np.ndarray]) -> np.ndarray:
    """[tokens, text] of patches [frames, rows, columns, 3, p, p]."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    x = embedded(patches, n, w)
    for layer in range(n.layers):
        x = after_block(x, n, w, f"vision_tower.encoder.blocks.{layer}.")
    x = normed(x, w, "vision_tower.encoder.final_layernorm", 1e-5).mean(0)
    rows, columns, hidden = x.shape
    tokens = [
        normed(x[r : r + n.merge, c : c + n.merge].reshape(-1, hidden), w, PRE_NORM, n.eps).ravel()
        for r in range(0, rows, n.merge)
        for c in range(0, columns, n.merge)
    ]
    y = linear(np.array(tokens), w, "mm_projector.proj.0")
    return linear(y * (1 + erf(y / math.sqrt(2))) / 2, w, "mm_projector.proj.2")


def embedded(patches: np.ndarray, n: Numbers, w: Mapping[str, np.ndarray]) -> np.ndarray:
    """[frames, rows, columns, hidden]."""
    mean, std = (np.array(c).reshape(3, 1, 1) for c in (n.mean, n.std))
    pixels = (patches / 255 - mean) / std
    kernel = w["vision_tower.patch_embed.proj.weight"]
    x = np.einsum("trcdyx,hdyx->trch", pixels, kernel) + w["vision_tower.patch_embed.proj.bias"]
    table = w["vision_tower.patch_embed.pos_emb.weight"]
    frames, rows, columns, hidden = x.shape
    table = interpolated(table, rows)
    x = x + interpolated(table.swapaxes(0, 1), columns).swapaxes(0, 1)
    if frames > 1:
        waves = np.arange(frames)[:, None] * 10000.0 ** -(np.arange(hidden // 2) / (hidden / 2))
        x = x + np.concatenate([np.sin(waves), np.cos(waves)], 1)[:, None, None]
    return x


def interpolated(table: np.ndarray, size: int) -> np.ndarray:
    """The first axis by the cubic of a = -0.75, corners not aligned, the border repeated."""
    before = len(table)
    out = np.zeros((size, *table.shape[1:]))
    for i in range(size):
        source = (i + 0.5) * before / size - 0.5
        for tap in range(math.floor(source) - 1, math.floor(source) + 3):
            out[i] += keys(source - tap, -0.75) * table[min(max(tap, 0), before - 1)]
    return out


def after_block(x: np.ndarray, n: Numbers, w: Mapping[str, np.ndarray], block: str) -> np.ndarray:
    """One item's states after one block."""
    frames, rows, columns, hidden = x.shape
    dim, count = hidden // n.heads, frames * rows * columns
    qkv = linear(normed(x, w, f"{block}norm0", 1e-5).reshape(count, hidden), w, f"{block}wqkv")
    q, k, v = (part.reshape(count, n.heads, dim) for part in np.split(qkv, 3, 1))
    _, row, column = np.indices(x.shape[:3]).reshape(3, count)
    turns = np.outer(column, frequencies(dim)), np.outer(row, frequencies(dim))
    turn = np.exp(1j * np.stack(turns, -1)).reshape(count, 1, dim // 2)
    q, k = (np.ascontiguousarray(part).view(np.complex128) * turn for part in (q, k))
    scores = np.einsum("qhd,khd->hqk", q, k.conj()).real / math.sqrt(dim)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    attended = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
    x = x + linear(attended.reshape(count, hidden), w, f"{block}wo").reshape(x.shape)
    y = linear(normed(x, w, f"{block}norm1", 1e-5), w, f"{block}mlp.fc0")
    y = y * (1 + np.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))) / 2
    return x + linear(y, w, f"{block}mlp.fc1")


def frequencies(dim: int) -> np.ndarray:
    """Of the pairs that turn by column, and of those that turn by row."""
    return 10000.0 ** (-4 * np.arange(dim // 4) / dim)


def linear(x: np.ndarray, w: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def normed(x: np.ndarray, w: Mapping[str, np.ndarray], name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return centred / scale * w[f"{name}.weight"] + w[f"{name}.bias"]


PRE_NORM = "mm_projector.pre_norm"
