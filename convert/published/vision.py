"""Read the vision tower and projector of a published checkpoint, with the target or alone."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flax import nnx
from jax.typing import DTypeLike

from convert.files.safetensors_files import read_json
from convert.fill import shapes_of
from convert.hub.files import PREPROCESSOR
from convert.models.vision import PARTS, vision_rules
from convert.published.directory import Published
from convert.published.exclude import unprefixed
from convert.published.parameters import OneKey, PublishedParameters, parse_config
from convert.published.plan import LoadPlan, make_plan
from convert.store.reader import Store
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel


def read_preprocessor(directory: Path) -> Mapping[str, Any] | None:
    """Read preprocessor_config.json; None if there is none."""
    file = directory / PREPROCESSOR
    return read_json(file) if file.is_file() else None


def vision_config_of(source: Published | Store) -> VisionConfig:
    """Read the vision configuration; ValueError, naming the file, if missing or unsupported."""
    preprocessor = read_preprocessor(source.directory)
    return parse_config(source, lambda fields: VisionConfig.from_hf(fields, preprocessor))


def abstract_vision(config: VisionConfig, dtype: DTypeLike, *, split: bool = False) -> VisionModel:
    """Return a vision model with shapes in place of arrays; `split` divides it over devices."""
    return nnx.eval_shape(lambda: VisionModel(config, rngs=OneKey(), dtype=dtype, split=split))


def has_vision(source: Published) -> bool:
    """Return whether config.json describes vision and the tensors are present."""
    return bool(source.config.get("vision_config")) and any(map(_is_vision, source.weight_shapes))


def plan_vision(published: Published, model: VisionModel) -> PublishedParameters:
    """Match the vision tensors with the model; one ValueError lists everything that does not fit.

    They are plain floats whatever quantization_config states: the released INT4 checkpoint's
    exclude list names only layers of the text model.
    """
    own = replace(
        published,
        weights=[weight for weight in published.weights if _is_vision(weight.name)],
        misfits=[misfit for misfit in published.misfits if _is_vision(misfit)],
        quantization=None,
    )
    shapes = shapes_of(model)
    return PublishedParameters(
        published, make_plan(own, vision_rules(), shapes, unprefixed), shapes
    )


def with_vision(
    planned: PublishedParameters, target: Target, dtype: DTypeLike
) -> PublishedParameters:
    """Merge the plan of a target with that of its vision part; sets the modules on `target`."""
    model = abstract_vision(vision_config_of(planned.published), dtype)
    vision = plan_vision(planned.published, model)
    for part in PARTS:
        setattr(target, part, getattr(model, part))
    ours, text = vision.plan, planned.plan
    dropped = {name: why for name, why in text.dropped.items() if name not in ours.rules}
    plan = LoadPlan(text.sources | ours.sources, text.rules | ours.rules, dropped)
    return PublishedParameters(planned.published, plan, {**planned.shapes, **vision.shapes})


def _is_vision(name: str) -> bool:
    return unprefixed(name).split(".")[0] in PARTS
