"""Load the vision tower and projector of a checkpoint."""

from pathlib import Path

from jax.sharding import Mesh
from jax.typing import DTypeLike

from convert.abstract_model import AbstractModel, abstract_model
from convert.hub.checkpoint import find_checkpoint
from convert.hub.source import Source
from convert.load import run_dtype
from convert.models.vision import PARTS
from convert.published.directory import Published, open_published
from convert.published.vision import abstract_vision, has_vision, plan_vision, vision_config_of
from convert.store.reader import is_store
from convert.stored import Stored, open_stored
from eagle3_jax.models.vision import VisionModel


def load_vision(
    path: str | Path | Source,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    split: bool = False,
) -> VisionModel:
    """Load the MoonViT tower and projector of a Kimi-K2.5 checkpoint, published or converted.

    `path` and `dtype` are as in `load_target`, which loads the text model; of a hub id all weights
    are downloaded. On a mesh every device holds the whole model, or with `split` a part of the
    heads and columns. `read_image` takes the model's `config`. Raises as `load_target`, and
    ValueError without vision.
    """
    return prepare_vision(path, dtype=dtype, mesh=mesh, split=split).fill()


def prepare_vision(
    path: str | Path | Source,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    split: bool = False,
) -> AbstractModel[VisionModel]:
    """Build the checked abstract model that `load_vision` fills, without reading weights."""
    source = _open(path)
    model = abstract_vision(vision_config_of(source), run_dtype(dtype), split=split)
    if not isinstance(source, Stored):
        return abstract_model(model, plan_vision(source, model), True, mesh)
    if not holds_vision(path):
        raise ValueError(f"{source.directory} was converted without vision: convert it again")
    text = {stored.split(".")[0] for stored in source.store.parameters}.difference(PARTS)
    return abstract_model(model, source, True, mesh, text)


def holds_vision(path: str | Path | Source) -> bool:
    """Return whether a checkpoint describes vision and has its tensors; raises as `load_target`."""
    source = _open(path)
    if isinstance(source, Stored):
        return any(stored.startswith(PARTS) for stored in source.store.parameters)
    return has_vision(source)


def _open(path: str | Path | Source) -> Published | Stored:
    """Open either form of a checkpoint, without logging assumptions about its quantised weights."""
    directory = find_checkpoint(path)
    return open_stored(directory) if is_store(directory) else open_published(directory)
