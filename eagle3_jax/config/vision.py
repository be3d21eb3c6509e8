"""Configuration of MoonViT, its projector and the image preprocessing."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from eagle3_jax.config.fields import METADATA, Fields
from eagle3_jax.config.published import brief, read_mapping, read_number, read_sizes, require_values
from eagle3_jax.config.target import text_fields


@dataclass(frozen=True, kw_only=True)
class PixelConfig:
    """`media_proc_cfg` of preprocessor_config.json; the defaults are Kimi-K2.5's.

    Limits count patches. `image_mean` and `image_std` hold red, green and blue in [0, 1]. The last
    four fields say how a video is cut into chunks. No command reads videos; the fields are kept so
    that saved checkpoints state them again.
    """

    in_patch_limit: int = 16384
    in_patch_limit_each_frame: int | None = 4096
    in_patch_limit_video: int | None = None
    patch_limit_on_one_side: int = 512
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    sample_fps: float = 2.0
    max_num_frames_each_video: int | None = None
    temporal_merge_kernel_size: int = 4
    timestamp_mode: str = "hh:mm:ss.fff"

    @classmethod
    def from_hf(cls, fields: Mapping[str, Any]) -> "PixelConfig":
        """Read `media_proc_cfg`; raise ValueError for invalid or unimplemented values."""
        fields = {k: v for k, v in fields.items() if v is not None or k not in OF_VIDEOS}
        require_values(fields, {"fixed_output_tokens": (), "timestamp_mode": TIMESTAMP_MODES})
        found: dict[str, Any] = read_sizes(fields, [name for name in SIZES if name in fields])
        for name in SIZES_OR_NONE:
            if name in fields:
                given = fields[name] is not None
                found |= read_sizes(fields, [name]) if given else {name: None}
        if "sample_fps" in fields:
            found["sample_fps"] = read_number(fields, "sample_fps")
        if "timestamp_mode" in fields:
            found["timestamp_mode"] = fields["timestamp_mode"]
        for name in ("image_mean", "image_std"):
            if name in fields:
                found[name] = _colours(fields, name)
        if 0 in found.get("image_std", ()):
            raise ValueError("image_std must not be 0")
        return cls(**found)

    def limit(self, frames: int | None = None) -> int:
        """Return the maximum patches of an image, or of each of `frames` frames of a chunk."""
        if frames is None:
            return self.in_patch_limit
        each = self.in_patch_limit_each_frame or self.in_patch_limit
        video = self.in_patch_limit_video
        return each if video is None else min(round(video / frames), each)


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """Sizes of the vision tower and projector.

    A token stands for `merge_size` x `merge_size` patches. `pos_emb_*`: the learned position table
    and the maximum frames per item. `text_hidden_size`: width of a token's features.
    """

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    pos_emb_height: int
    pos_emb_width: int
    pos_emb_time: int
    patch_size: int
    text_hidden_size: int
    merge_size: int
    projector_ln_eps: float
    media_placeholder_token_id: int
    pixels: PixelConfig

    @classmethod
    def from_hf(
        cls, config: Mapping[str, Any], preprocessor: Mapping[str, Any] | None = None
    ) -> "VisionConfig":
        """Read config.json and preprocessor_config.json (None: Kimi-K2.5's values).

        Raises ValueError for a checkpoint without vision and for options that are not implemented.
        """
        vision = read_mapping(config, "vision_config")
        if not vision:
            raise ValueError("this checkpoint has no vision: config.json has no vision_config")
        VISION_FIELDS.require(vision)
        sizes = read_sizes(_one_name(vision), [*PUBLISHED_AS, "patch_size", "text_hidden_size"])
        media = read_mapping(preprocessor or {}, "media_proc_cfg")
        merge = _merge_size(vision)
        _check_agreement(config, vision, media, sizes, merge)
        return cls(
            **sizes,
            merge_size=merge,
            projector_ln_eps=read_number(vision, "projector_ln_eps", 1e-5),
            media_placeholder_token_id=read_placeholder(config),
            pixels=PixelConfig.from_hf(media),
        )

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def token_patches(self) -> int:
        """Number of patches of one frame that a token stands for."""
        return self.merge_size**2

    @property
    def most_side(self) -> int:
        """Maximum patches per side, including padding."""
        return min(self.pixels.patch_limit_on_one_side, ROTARY_POSITIONS)

    @cached_property
    def most_image_tokens(self) -> int:
        """Maximum tokens of a resized image.

        Resizing counts whole patches of the original image, so a side of `a` patches may stay up to
        (a + 1) / a times as long as the limit allows; padding then fills its last token.
        """
        limit, merge = self.pixels.in_patch_limit, self.merge_size
        side = max(1, self.most_side // merge)
        fits = (
            (rows + 1) * (columns + 1)
            for rows, columns in product(range(side), repeat=2)
            if (a := rows * merge) * (b := columns * merge) * a * b < limit * (a + 1) * (b + 1)
        )
        return max(fits)


def read_placeholder(config: Mapping[str, Any]) -> int:
    """Read the id that stands for images in a prompt; raise ValueError if it is invalid."""
    if config.get(PLACEHOLDER) is None:
        return MEDIA_PAD
    return read_sizes(config, [PLACEHOLDER], least=0)[PLACEHOLDER]


def _one_name(vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields under their short names; raise ValueError if two names disagree."""
    found = dict(vision)
    for name, published in PUBLISHED_AS.items():
        if published in vision:
            if vision.get(name, vision[published]) != vision[published]:
                raise ValueError(
                    f"vision_config says {published} {brief(vision[published])} and {name} "
                    f"{brief(vision[name])}; they are one field"
                )
            found[name] = vision[published]
    return found


def _merge_size(vision: Mapping[str, Any]) -> int:
    given = vision.get("merge_kernel_size", [2, 2])
    sides = list(given) if isinstance(given, list | tuple) else [given, given]
    if len(sides) != 2 or sides[0] != sides[1] or type(sides[0]) is not int or sides[0] < 1:
        raise ValueError(f"merge_kernel_size must be two equal sides, got {brief(given)}")
    return sides[0]


def _check_agreement(
    config: Mapping[str, Any],
    vision: Mapping[str, Any],
    media: Mapping[str, Any],
    sizes: Mapping[str, int],
    merge: int,
) -> None:
    """Raise ValueError if numbers that are stated twice, or depend on each other, disagree."""
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    given = media.get("merge_kernel_size", merge)
    pairs = {
        "mm_hidden_size": (vision.get("mm_hidden_size", hidden), hidden),
        "text_hidden_size": (
            sizes["text_hidden_size"],
            text_fields(config).get("hidden_size", sizes["text_hidden_size"]),
        ),
        "patch_size of preprocessor_config.json": (
            media.get("patch_size", sizes["patch_size"]),
            sizes["patch_size"],
        ),
        "merge_kernel_size of preprocessor_config.json": (
            given[0] if isinstance(given, list) and given else given,
            merge,
        ),
    }
    for name, (found, expected) in pairs.items():
        if found != expected:
            raise ValueError(
                f"{name} must be {expected}, as config.json has it, got {brief(found)}"
            )
    if hidden % heads or hidden // heads % 4:
        raise ValueError(f"{heads} heads of {hidden} columns: each must have a multiple of 4")


def _colours(fields: Mapping[str, Any], name: str) -> tuple[float, ...]:
    given = fields[name]
    if not isinstance(given, list) or len(given) != 3:
        raise ValueError(f"{name} must be three numbers, got {brief(given)}")
    return tuple(read_number({name: value}, name) for value in given)


PLACEHOLDER = "media_placeholder_token_id"
MEDIA_PAD = 163605
"""Id of Kimi-K2.5's <|media_pad|>: the default placeholder."""
ROTARY_POSITIONS = 512
"""Number of rows, and of columns, in the released rotary table."""
SIZES = ("in_patch_limit", "patch_limit_on_one_side", "temporal_merge_kernel_size")
OF_VIDEOS = ("sample_fps", "temporal_merge_kernel_size", "timestamp_mode")
"""Fields that are written back but not read yet. Null counts as absent."""
SIZES_OR_NONE = ("in_patch_limit_each_frame", "in_patch_limit_video", "max_num_frames_each_video")
TIMESTAMP_MODES = ("hh:mm:ss.fff", "mm:ss.fff", "mm:ss")
PUBLISHED_AS = {
    "hidden_size": "vt_hidden_size",
    "num_hidden_layers": "vt_num_hidden_layers",
    "num_attention_heads": "vt_num_attention_heads",
    "intermediate_size": "vt_intermediate_size",
    "pos_emb_height": "init_pos_emb_height",
    "pos_emb_width": "init_pos_emb_width",
    "pos_emb_time": "init_pos_emb_time",
}
"""Short field name -> its name in the released file. A file may have either or both."""
VISION_KINDS: dict[str, tuple[Any, ...]] = {
    "pos_emb_type": ("divided_fixed",),
    "merge_type": ("sd2_tpool",),
    "video_attn_type": ("spatial_temporal",),
    "mm_projector_type": ("patchmerger",),
}
VISION_FIELDS = Fields(
    read=(
        *PUBLISHED_AS,
        *PUBLISHED_AS.values(),
        *("patch_size", "text_hidden_size", "mm_hidden_size", "merge_kernel_size"),
        "projector_ln_eps",
    ),
    only={
        **VISION_KINDS,
        "hidden_act": ("gelu_pytorch_tanh",),
        "projector_hidden_act": ("gelu",),
    },
    ignored=METADATA,
    objects={
        "rope_parameters": Fields(only={"rope_theta": (10000,), "rope_type": ("axial",)}),
    },
)
