"""Bytes of abstract models, in total and on each device."""

import math
from dataclasses import dataclass

from flax import nnx

from convert.fill import named_variables
from eagle3_tools.plan.model.split import WHOLE, Parts, device_shape


@dataclass(frozen=True)
class ModelBytes:
    """Bytes of a model. nbytes: total, each weight once. device_nbytes: of every device's part.

    by_part: the latter for attention, routed experts, embedding and so on. largest: name and size
    of the array with most elements on a device.
    """

    nbytes: int
    device_nbytes: int
    by_part: dict[str, int]
    largest: tuple[str, int]


def model_bytes(model: nnx.Module, parts: Parts = WHOLE) -> ModelBytes:
    """Compute the bytes of a model on a mesh. Raises ValueError for arrays that do not split."""
    total, by_part, largest = 0, dict[str, int](), ("", 0)
    for path, variable in named_variables(model).items():
        value = variable.get_value()
        elements = math.prod(device_shape(path, variable, parts))
        part = _part(path)
        total += value.size * value.dtype.itemsize
        by_part[part] = by_part.get(part, 0) + elements * value.dtype.itemsize
        largest = max(largest, (path, elements), key=lambda found: found[1])
    return ModelBytes(total, sum(by_part.values()), by_part, largest)


def _part(path: str) -> str:
    """Return an array's part of the model: the module below its layer."""
    names = [name for name in path.split(".") if not name.isdigit()]
    for name, part in _PARTS.items():
        if name in names:
            return part
    return "norms"


_PARTS = {
    "self_attn": "attention",
    "gate": "router",
    "experts": "routed experts",
    "shared_experts": "shared experts",
    "mlp": "dense layers",
    "embed_tokens": "embedding",
    "lm_head": "head",
    "fc": "fc",
}
"""Modules, inner ones first."""
