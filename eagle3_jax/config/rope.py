"""Configuration of rotary position embeddings: the base and the YaRN extension."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3_jax.config.published import brief, read_mapping, read_number, read_sizes, require_values


@dataclass(frozen=True)
class YarnConfig:
    """YaRN context extension (Peng et al., arXiv 2309.00071) as DeepSeek-V3 publishes it."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @classmethod
    def from_hf(cls, scaling: Mapping[str, Any]) -> "YarnConfig":
        """Read the contents of `rope_scaling`; raise ValueError for missing or invalid numbers."""
        optional = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        given = {n: read_number(scaling, n) for n in optional if scaling.get(n) is not None}
        length = "original_max_position_embeddings"
        yarn = cls(read_number(scaling, "factor"), read_sizes(scaling, [length])[length], **given)
        stated = read_number(scaling, "attention_factor", yarn.cos_sin_scale)
        if not math.isclose(stated, yarn.cos_sin_scale, rel_tol=1e-6):
            raise ValueError(
                f"attention_factor must be {yarn.cos_sin_scale}, which follows from YaRN's factor "
                f"and mscale, got {stated}"
            )
        return yarn

    def __post_init__(self) -> None:
        if min(self.factor, self.beta_fast, self.beta_slow) <= 0:
            raise ValueError(f"YaRN's factor and betas must be greater than 0, got {self}")

    def magnitude(self, mscale: float) -> float:
        """Return YaRN's attention magnitude: 0.1 * mscale * ln(factor) + 1, or 1 if factor <= 1."""
        return 0.1 * mscale * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    @property
    def cos_sin_scale(self) -> float:
        """Factor on cos and sin. It is 1 if mscale equals mscale_all_dim, as in all Kimi files."""
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude(1.0)

    @property
    def latent_score_scale(self) -> float:
        """Factor on latent attention scores: the squared magnitude of `mscale_all_dim`, or 1."""
        return self.magnitude(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: the base and an optional YaRN extension."""

    theta: float
    yarn: YarnConfig | None = None

    def __post_init__(self) -> None:
        if self.theta <= 1:
            raise ValueError(f"rope_theta must be greater than 1, got {self.theta}")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any], *, rotated: float = 1.0) -> "RopeConfig":
        """Read `rope_theta` and `rope_scaling`, or the newer `rope_parameters`.

        Raises ValueError for unsupported types, and if the file's rotated fraction is not
        `rotated`.
        """
        parameters = _parameters(config)
        theta = read_number(parameters, "rope_theta", 10000.0)
        require_values(parameters, {"partial_rotary_factor": (rotated,)})
        kind = parameters.get("rope_type", "default")
        if kind not in ("default", "yarn"):
            raise ValueError(f"rope type must be 'default' or 'yarn', got {brief(kind)}")
        return cls(theta, YarnConfig.from_hf(parameters) if kind == "yarn" else None)

    def overridden(
        self, *, theta: float | None = None, yarn_factor: float | None = None
    ) -> "RopeConfig":
        """Return a copy with another base or YaRN factor; raise ValueError if there is no YaRN."""
        rope = self if theta is None else replace(self, theta=float(theta))
        if yarn_factor is None:
            return rope
        if rope.yarn is None:
            raise ValueError("yarn_factor was given, but config.json has no YaRN rope_scaling")
        return replace(rope, yarn=replace(rope.yarn, factor=float(yarn_factor)))


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Merge all rotary fields; raise ValueError for contradictions, on which engines differ."""
    outer = {name: config.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    inner = (read_mapping(config, name) for name in ("rope_scaling", "rope_parameters"))
    found: dict[str, Any] = {}
    for fields in (outer, *inner):
        for key, value in fields.items():
            name = "rope_type" if key == "type" else key
            if value is not None and found.setdefault(name, value) != value:
                raise ValueError(
                    f"{name} must be the same wherever the file states it, got "
                    f"{brief(found[name])} and {brief(value)}"
                )
    return found
