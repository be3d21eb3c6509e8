"""Plan the conversion of a published checkpoint from its headers, and compare it with a store."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

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
from convert.published.vision import has_vision, with_vision
from convert.published.weights import Int4OrderChoice, assumed_orders
from convert.store.files import file_checksum, fingerprint, side_files
from convert.store.manifest import Manifest, Origin, StoredParameter
from convert.store.parameters import Parameter, checksum, for_arch
from convert.store.reader import Store
from convert.text.tokenizer import load_tokenizer
from eagle3_jax.config import DraftConfig
from eagle3_jax.config.draft_layouts import draft_kind, flat_draft_config
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.models.eagle3 import Eagle3Draft
from pallas_kernels.quantized import WEIGHT_FORMATS

ANY_TARGET_LAYERS = 10_000
"""Layer count that accepts any draft: a draft is shaped by the number of aux layers, not by their
ids."""
NAMED = 3
"""Maximum number of tensors that an error names."""


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
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter, in the model's order, the file's precision and the formats of `arch`."""
        parameters = []
        for path, variable in self.variables.items():
            abstract = variable.get_value()
            dtype = self._dtype(path, np.dtype(abstract.dtype))
            read = partial(self.planned.read, path, dtype)
            parameters.append(Parameter(path, abstract.shape, dtype, read, self._tensors(path)))
        return for_arch(parameters, self.origin.arch)

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
        return self.planned.stored_dtype(path)


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


def check_finite(manifest: Manifest, allowed: bool, partial: Path) -> list[str]:
    """Return warnings about NaN or infinite weights; ValueError unless they are allowed."""
    names = [name for parameter in manifest.contents.parameters for name in parameter.nonfinite]
    if not names:
        return []
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    found = f"{len(names)} tensors hold NaN or infinities: {', '.join(names[:NAMED])}{more}"
    if allowed:
        return [f"warning: {found}"]
    raise ValueError(
        f"{found}; repeat the command with --allow-nonfinite to keep them, or delete {partial}"
    )


def check_tokenizer(conversion: Conversion) -> list[str]:
    """Return notes on a target's tokenizer; ValueError if it is empty or damaged."""
    directory = conversion.planned.published.directory
    if isinstance(conversion.model, Eagle3Draft):
        return []
    try:
        load_tokenizer(directory)
    except FileNotFoundError:
        return [f"note: {directory} has no tokenizer; eagle3-serve and eagle3-generate need one"]
    except ValueError as error:
        raise ValueError(f"{error}; replace it, or remove it to convert without one") from error
    return []


def differences_from(
    source: str | Path, store: Store, on_bytes: Callable[[int], None] = lambda _: None
) -> Iterator[str]:
    """Yield a line for each parameter and side file that differs from a new conversion of `source`.

    The whole source is read again with the store's own options, and its SHA-256 sums are compared
    with the manifest. `verify_store` compares the store's arrays with the same manifest. Raises as
    `open_conversion` does.
    """
    origin = store.manifest.origin
    orders: dict[object, Int4OrderChoice] = {name: name for name in get_args(Int4OrderChoice)}
    order = orders.get(origin.options.get("int4_order"), "auto")
    conversion = open_conversion(source, int4_order=order, arch=origin.arch)
    yield from _other_origin(conversion, store)
    given = {parameter.path: parameter for parameter in conversion.parameters}
    for path in store.parameters.keys() - given.keys():
        yield f"{path}: not in {source}"
    for path, parameter in given.items():
        stored = store.parameters.get(path)
        if stored is None:
            yield f"{path}: missing"
        elif wrong := _difference(parameter, stored):
            yield f"{path}: {wrong}"
        on_bytes(parameter.nbytes)


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


def _other_origin(conversion: Conversion, store: Store) -> Iterator[str]:
    """Compare formats, tensor names and small files in the manifest with those of the source."""
    ours, stored = conversion.origin, store.manifest.origin
    if (ours.formats, ours.tensors) != (stored.formats, stored.tensors):
        yield "manifest.json: formats or tensors are not those of the source"
    for file in side_files(conversion.planned.published.directory):
        if store.manifest.contents.side_files.get(file.name) != file_checksum(file):
            yield f"{file.name}: not the source's"


def _difference(parameter: Parameter, stored: StoredParameter) -> str | None:
    expected = (parameter.shape, parameter.dtype.name)
    if expected != (stored.shape, stored.dtype):
        return f"expected {expected}, found {(stored.shape, stored.dtype)}"
    return None if checksum(parameter.read()) == stored.checksum else "other values"
