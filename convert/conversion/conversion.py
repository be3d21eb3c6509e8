"""Plan the conversion of a published checkpoint from its headers alone."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from convert.files.safetensors_files import DTYPES
from convert.fill import named_variables
from convert.models.eagle3 import canonical_draft_name
from convert.pairing import check_target_ids
from convert.published.directory import Published, open_published, unknown_fields_notes
from convert.published.parameters import (
    PublishedParameters,
    abstract_draft,
    abstract_target,
    parse_config,
    plan_draft,
    plan_target,
    target_config_of,
)
from convert.published.read_parameter import file_dtype
from convert.published.vision import has_vision, with_vision
from convert.published.weights import Int4OrderChoice, assumed_orders
from convert.store.manifest import Origin
from convert.store.parameter import Parameter
from convert.store.source import fingerprint
from eagle3_jax.config import DraftConfig
from eagle3_jax.config.draft_layouts import draft_kind, flat_draft_config
from eagle3_jax.layers.quantized import quantize_structure
from pallas_kernels.quantized import WEIGHT_FORMATS

ANY_TARGET_LAYERS = 10_000
"""Layer count that accepts any draft: a draft is shaped by the number of aux layers, not by their
ids."""


@dataclass(frozen=True)
class Conversion:
    """The plan of a conversion.

    `model` is abstract, with quantised kernels. `shared` names a draft's submodules of its target.
    `notes` are assumptions, and ignored fields of config.json.
    """

    planned: PublishedParameters
    model: nnx.Module = field(repr=False)
    shared: Collection[str]
    origin: Origin
    notes: tuple[str, ...]

    @property
    def variables(self) -> dict[str, nnx.Variable]:
        """The model's own abstract variables by path."""
        return named_variables(self.model, self.shared)

    @property
    def parameters(self) -> Iterator[Parameter]:
        """Every parameter, in the model's order and the file's precision."""
        for path, variable in self.variables.items():
            abstract = variable.get_value()
            dtype = self._dtype(path, np.dtype(abstract.dtype))
            read = partial(self.planned.read, path, dtype)
            yield Parameter(path, abstract.shape, dtype, read, self._tensors(path))

    def require_unchanged(self) -> None:
        """Raise ValueError if the source's files changed since they were opened."""
        directory = self.planned.published.directory
        before, now = set(self.origin.source), set(fingerprint(directory))
        if changed := sorted(file.name for file in before ^ now):
            raise ValueError(
                f"{directory} changed while it was converted ({changed[0]}): the parameters may be "
                "of two checkpoints; delete what was made of it and convert again"
            )

    def _tensors(self, path: str) -> tuple[str, ...]:
        """Return the tensors that a parameter is read from, in row order if it is stacked."""
        sources = self.planned.plan.sources
        found = sources[path] if path in sources else sources[path.rpartition(".")[0]]
        return tuple(s.weight.tensor.name for s in sorted(found, key=lambda s: s.row or 0))

    def _dtype(self, path: str, abstract: np.dtype) -> np.dtype:
        kernel, _, which = path.rpartition(".")
        if form := self.planned.plan.forms.get(kernel):
            stored = WEIGHT_FORMATS[form.weights]
            if which == "values":
                return np.dtype(stored.values_dtype)
            if stored.rounded:
                parts = self.planned.plan.sources[kernel][0].weight.parts
                return DTYPES[parts["weight_scale"].dtype]
            return np.dtype(stored.scale_dtype)
        if not jnp.issubdtype(abstract, jnp.floating):
            return abstract
        return file_dtype(self.planned.plan.sources[path])


def open_conversion(
    source: str | Path, *, int4_order: Int4OrderChoice = "auto", arch: str = "gfx950"
) -> Conversion:
    """Plan the conversion of a published target or draft.

    Raises FileNotFoundError for missing files, and one ValueError with everything that does not
    fit.
    """
    published = open_published(source, int4_order=int4_order)
    planned, model, shared = _plan(published)
    formats = planned.formats
    assumed = [
        f"assuming {order}; --int4-order says otherwise"
        for order in assumed_orders(published.weights, int4_order)
    ]
    unknown = unknown_fields_notes(published.directory / "config.json", published.config)
    quantize_structure(model, formats)
    origin = Origin(
        source=fingerprint(Path(source)),
        arch=arch,
        options={"int4_order": int4_order, "assumed": assumed},
        formats={path: asdict(format) for path, format in formats.items()},
        tensors={weight.name: weight.shape for weight in published.weights},
    )
    return Conversion(planned, model, shared, origin, (*assumed, *unknown))


def _plan(published: Published) -> tuple[PublishedParameters, nnx.Module, Collection[str]]:
    """Return load plan, abstract model and shared submodules. The model's dtype is not used."""
    if not _is_draft(published):
        target = abstract_target(target_config_of(published), jnp.bfloat16)
        planned = plan_target(published, target)
        if has_vision(published):
            planned = with_vision(planned, target, jnp.bfloat16)
        return planned, target, ()
    config = parse_config(
        published,
        lambda fields: DraftConfig.from_hf(fields, num_target_layers=ANY_TARGET_LAYERS),
    )
    names = {canonical_draft_name(weight.name) for weight in published.weights}
    shared = [n for n in ("embed_tokens", "lm_head") if f"{n}.weight" not in names]
    draft = abstract_draft(config, jnp.bfloat16)
    planned = plan_draft(published, draft, shared)
    if (offsets := planned.read_target_offsets()) is not None:
        check_target_ids(published.directory, config, offsets)
    return planned, draft, shared


def _is_draft(published: Published) -> bool:
    try:
        draft_kind(flat_draft_config(published.config))
    except ValueError:
        return False
    return True
