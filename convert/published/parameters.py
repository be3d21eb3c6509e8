"""Read the parameters of a model one by one from a published checkpoint, by a plan."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx
from jax.sharding import Sharding
from jax.typing import DTypeLike

from convert.files.box import Box, box_of, whole
from convert.fill import shapes_of
from convert.models.eagle3 import canonical_draft_name, draft_rules
from convert.models.targets import target_files
from convert.published.directory import Published
from convert.published.plan import LoadPlan, make_plan
from convert.published.quantization_config import activations_of
from convert.published.read_parameter import file_dtype, read_floats, read_kept
from convert.store.reader import Store
from eagle3_jax.config import DraftConfig, TargetConfig, read_target_config
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.targets import make_target
from pallas_kernels import QuantFormat

Config = TypeVar("Config")
_LAYER = re.compile(r"\blayers\.(\d+)\.")


@dataclass(frozen=True)
class PublishedParameters:
    """The parameters of one model in a published checkpoint, with the plan that fills them."""

    published: Published
    plan: LoadPlan
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def formats(self) -> dict[str, QuantFormat]:
        """Formats of the parameters that stay quantised, with the authors' activation formats."""
        quantization = self.published.quantization
        first = {path: self.plan.sources[path][0].weight for path in self.plan.forms}
        return {
            path: QuantFormat(form.weights, activations_of(quantization, first[path]))
            for path, form in self.plan.forms.items()
        }

    def check(self, paths: Collection[str], skip: Collection[str]) -> None:
        """Do nothing: the plan was checked when it was made."""

    def stored_dtype(self, path: str) -> np.dtype:
        """Return the file's dtype of a float parameter, or float32 if it is read from several."""
        return file_dtype(self.plan.sources[path])

    def read(self, path: str, dtype: np.dtype | None = None, box: Box | None = None) -> np.ndarray:
        """Read one parameter, or a box of it; a quantised one as `path.values` and `path.scale`.

        Args:
            dtype: type that floats are cast to; None keeps the file's.
        """
        kernel, _, which = path.rpartition(".")
        if kernel in self.plan.forms:
            return read_kept(self.plan.sources[kernel], which, box)
        box = whole(self.shapes[path]) if box is None else box
        return read_floats(self.plan.sources[path], box, dtype or self.stored_dtype(path))

    def load(
        self, path: str, dtype: np.dtype | None, shape: tuple[int, ...], sharding: Sharding | None
    ) -> jax.Array:
        """Load one parameter onto its devices; each device's part is read separately."""
        if sharding is None:
            return jax.device_put(self.read(path, dtype))
        return jax.make_array_from_callback(
            shape, sharding, lambda index: self.read(path, dtype, box_of(index, shape))
        )

    def read_target_offsets(self) -> np.ndarray | None:
        """Read the draft's d2t table, even if the model does not use it; None if there is none."""
        names = {canonical_draft_name(name): name for name in self.published.checkpoint.tensors}
        return self.published.checkpoint.read(names["d2t"]) if "d2t" in names else None


class OneKey(nnx.Rngs):
    """A constant key for abstract models; counting real keys takes 14 s for 61 layers."""

    def __init__(self) -> None:
        super().__init__()

    def params(self) -> jax.Array:  # type: ignore[override]
        return jax.random.key(0)


def abstract_target(config: TargetConfig, dtype: DTypeLike) -> Target:
    """Return a target with shapes in place of arrays."""
    return nnx.eval_shape(lambda: make_target(config, rngs=OneKey(), dtype=dtype))


def abstract_draft(config: DraftConfig, dtype: DTypeLike) -> Eagle3Draft:
    return nnx.eval_shape(lambda: Eagle3Draft(config, rngs=OneKey(), dtype=dtype))


def plan_target(published: Published, model: Target) -> PublishedParameters:
    """Match a checkpoint with a target; one ValueError lists everything that does not fit."""
    shapes, files = shapes_of(model), target_files(model.config)
    plan = make_plan(published, files.rules(model.config), shapes, files.canonical_name)
    return PublishedParameters(published, plan, shapes)


def plan_draft(
    published: Published, model: Eagle3Draft, shared: Collection[str]
) -> PublishedParameters:
    """Match a checkpoint with a draft; `shared` are submodules that it takes from its target."""
    shapes = shapes_of(model, shared)
    rules = draft_rules(model.config, own_lm_head="lm_head" not in shared)
    plan = make_plan(published, rules, shapes, canonical_draft_name)
    return PublishedParameters(published, plan, shapes)


def target_config_of(source: Published | Store) -> TargetConfig:
    """Read the target's configuration; ValueError if it has more layers than the tensors.

    Without this check a damaged number would build layers for hours.
    """
    config = parse_config(source, read_target_config)
    found = {layer[1] for name in source.weight_shapes if (layer := _LAYER.search(name))}
    if config.num_hidden_layers > len(found):
        raise ValueError(
            f"{source.directory / 'config.json'}: num_hidden_layers is "
            f"{config.num_hidden_layers}, but the tensors are of {len(found)} layers"
        )
    return config


def parse_config(source: Published | Store, parse: Callable[[Mapping[str, Any]], Config]) -> Config:
    """Parse config.json; errors name the file."""
    try:
        return parse(source.config)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{source.directory / 'config.json'}: {error}") from error
